// Engines from settings as Python gives them.
//
// Covers: words into an engine's configuration; the engine over this machine's memory.
// Leaves: that over a GPU (module_cuda.cpp), those for tests (module_parts.cpp, module_probing.cpp).
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "engine/engine.h"

namespace vt {

// Throws InvalidUse for a word that is unknown.
EngineConfig config_of(std::size_t budget_chunks, const std::string& policy, const std::string& granularity,
                       const std::string& leaving, bool raise_oversize);

struct HostEngine {
  EngineConfig config;
  Bytes chunk_bytes = 0;
  Bytes host_bytes = 0;
  std::string spill_dir;  // empty: what is absent waits in RAM
  double link = 0;        // bytes a second each way; 0: as fast as copies are
};

// `wrap` may put another driver around the one that there would be.
std::unique_ptr<Engine> make_host_engine(const HostEngine& wanted,
                                         const std::function<std::unique_ptr<Driver>(std::unique_ptr<Driver>)>& wrap = {});

}  // namespace vt
