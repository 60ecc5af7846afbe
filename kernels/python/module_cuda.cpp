// The Python face of the CUDA device. See module.h. Compiled only against a torch that was built with CUDA.

#include <algorithm>

#include "cuda/cuda_slab.h"
#include "cuda/driver_cuda.h"
#include "python/engines.h"
#include "python/module.h"
#include "process/registry.h"
#include "torch/torch_cuda.h"
#include "torch/torch_seen.h"

namespace py = pybind11;

namespace vt {
namespace {

CudaDriver* g_driver = nullptr;  // the current engine's; nullptr without one

// Donated chunks that are not in use: their owner's again.
std::vector<Address> unused_chunks() {
  std::vector<Address> homes;
  if (g_driver == nullptr) return homes;
  while (const Address home = g_driver->take_back()) homes.push_back(home);
  return homes;
}

// Fewer chunks for the engine: what it let go of is its owner's again. As many as can be had now.
std::vector<Address> give_chunks_back(std::size_t chunks) {
  std::vector<Address> given;
  Engine* engine = current_engine();
  if (engine == nullptr || g_driver == nullptr) return given;
  const std::size_t budget = engine->inspect().snapshot().budget_chunks;
  for (std::size_t want = std::min(chunks, budget - 1); want > 0 && given.empty(); --want) {
    try {
      engine->resize(budget - want);
    } catch (const OutOfMemory&) {
      continue;  // so many are in use right now
    }
    for (std::size_t i = 0; i < want; ++i) {
      if (const Address home = g_driver->take_back()) given.push_back(home);
    }
    if (given.empty()) engine->resize(budget);  // they were the engine's own: nobody would gain
  }
  return given;
}

}  // namespace

void bind_cuda(py::module_& m) {
  m.def("probe_cuda", [](int ordinal) {
    const CudaDevice device = probe_cuda(ordinal);
    py::dict d;
    d["name"] = device.name;
    d["granularity"] = device.granularity;
    d["virtual_memory"] = device.virtual_memory;
    d["integrated"] = device.integrated;
    d["host_in_place"] = device.host_node >= 0;
    return d;
  });
  m.def(
      "start_cuda",
      [](std::size_t budget_chunks, Bytes chunk, Bytes host, const std::string& policy, const std::string& granularity,
         const std::string& leaving, bool raise_oversize, Bytes min_size, int ordinal, const std::vector<Address>& donated,
         bool places, bool strict) {
        if (current_engine() != nullptr) throw InvalidUse("vtensor is already enabled");
        auto driver = std::make_unique<CudaDriver>(chunk, ordinal, nullptr, places);
        for (const Address home : donated) (void)driver->donate(home);
        CudaDriver* made = driver.get();
        EngineConfig config = config_of(budget_chunks, policy, granularity, leaving, raise_oversize);
        config.strict = strict;
        adopt(std::make_unique<Engine>(std::move(driver), make_ram_store(chunk, host, cuda_pinning(ordinal)), config));
        g_driver = made;
        attach_torch_cuda(min_size, ordinal);
      },
      py::arg("budget_chunks"), py::arg("chunk"), py::arg("host"), py::arg("policy"), py::arg("granularity"),
      py::arg("leaving"), py::arg("raise_oversize"), py::arg("min_size"), py::arg("ordinal"), py::arg("donated"),
      py::arg("places"), py::arg("strict"));
  // Whether no tensor uses its chunks any more, and the donated ones that none does.
  m.def("stop_cuda", [] {
    py::gil_scoped_release unlocked;
    std::pair<bool, std::vector<Address>> left{true, {}};
    Engine* engine = current_engine();
    if (engine == nullptr) return left;
    engine->detach();  // throws if what is absent cannot come back; then nothing changed
    stop_seeing(*engine);
    left.first = engine->drained();  // and the driver is gone with the last tensor
    if (!left.first) left.second = unused_chunks();
    g_driver = nullptr;
    detach_torch_cuda();
    retire_current();
    return left;
  });
  // For vtensor/devices/pools.py.
  using Unlocked = py::call_guard<py::gil_scoped_release>;
  m.def("make_slab", &make_slab, py::arg("bytes"), py::arg("chunk"), py::arg("ordinal"), Unlocked());
  m.def("free_slab", &free_slab, py::arg("address"), py::arg("bytes"), py::arg("chunk"), py::arg("ordinal"), Unlocked());
  m.def("donate", [](const std::vector<Address>& homes) {
    for (const Address home : homes) (void)g_driver->donate(home);
  });
  m.def("unused_chunks", &unused_chunks);
  m.def("give_chunks_back", &give_chunks_back, py::arg("chunks"), Unlocked());
}

}  // namespace vt
