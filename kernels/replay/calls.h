// Calls of a recorded iteration that can be run again, on a modelled GPU.
//
// Covers: what a call reads, makes and takes; running it again, by arithmetic.
// Leaves: when (recipes.h, plan_runner.h), the iteration around it (replay.h).
#pragma once

#include <optional>
#include <vector>

#include "engine/engine.h"
#include "recipes/making.h"
#include "testing/driver_model.h"

namespace vt {

// One call: rows [first, last] of the trace. Tensors are the trace's.
struct ReplayCall {
  std::uint32_t first = 0, last = 0;
  std::uint64_t ns = 0;
  Bytes scratch = 0;                  // allocated, and freed before it ends
  std::vector<std::size_t> sources;   // there before it, in order of use
  std::vector<std::size_t> results;   // made by it, and outlive it, in order of birth
  std::optional<std::size_t> written; // which source it overwrites
  std::optional<std::size_t> filled;  // what it overwrites without reading it: its first result
};

// It, to be run again.
struct ModelCall final : Operation {
  std::uint64_t ns = 0;
  Bytes scratch = 0;
  std::vector<Bytes> births;
  std::optional<std::size_t> overwrites;
};

class ModelRemaker final : public Remaker {
 public:
  ModelRemaker(Engine& engine, ModelDriver& device, Lane stream, std::uint64_t launch_ns)
      : engine_(engine), device_(device), stream_(stream), launch_ns_(launch_ns) {}
  void run(const Recipes::Run& run, const Take& take, bool aside) override;

 private:
  Range& allocate(Bytes bytes, const Range* whose);
  void release(Range& range);

  Engine& engine_;
  ModelDriver& device_;
  const Lane stream_;
  const std::uint64_t launch_ns_;
};

}  // namespace vt
