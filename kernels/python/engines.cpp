#include "python/engines.h"

#include <utility>

#include "device/driver_host.h"

namespace vt {

EngineConfig config_of(std::size_t budget_chunks, const std::string& policy, const std::string& granularity,
                       const std::string& leaving, bool raise_oversize) {
  EngineConfig config;
  config.budget_chunks = budget_chunks;
  config.order = victim_order_from(policy);
  config.granularity = granularity_from(granularity);
  config.leaving = leaving_from(leaving);
  config.oversize = raise_oversize ? Oversize::raise : Oversize::borrow;
  return config;
}

std::unique_ptr<Engine> make_host_engine(const HostEngine& wanted,
                                         const std::function<std::unique_ptr<Driver>(std::unique_ptr<Driver>)>& wrap) {
  // A file's copies are system calls, which a lane's thread makes; what goes from memory to memory takes processors.
  const Team team = wanted.spill_dir.empty() ? computing_team() : nullptr;
  std::unique_ptr<Driver> driver = std::make_unique<HostDriver>(wanted.chunk_bytes, wanted.link, team);
  if (wrap) driver = wrap(std::move(driver));
  auto store = wanted.spill_dir.empty() ? make_ram_store(wanted.chunk_bytes, wanted.host_bytes)
                                        : make_file_store(wanted.chunk_bytes, wanted.host_bytes, wanted.spill_dir);
  return std::make_unique<Engine>(std::move(driver), std::move(store), wanted.config);
}

}  // namespace vt
