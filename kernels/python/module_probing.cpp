// The running session as tests and benchmarks drive it: nothing of the product calls these.
//
// Covers: a session on a late device; what leaves when it is told to; how much is observed, and moved side by side.
// Leaves: single parts, without a session (module_parts.cpp).

#include <algorithm>

#include "iteration/thread_state.h"
#include "process/registry.h"
#include "python/engines.h"
#include "python/module.h"
#include "testing/driver_late.h"
#include "torch/torch_bridge.h"
#include "torch/torch_observer.h"

namespace py = pybind11;

namespace vt {
namespace {

LateWork* g_late_work = nullptr;  // of the newest engine; never destroyed: each may live to the end

// An engine over an ordered device in ordinary memory, its order of work drawn from `seed` (driver_late.h).
std::unique_ptr<Engine> make_late_engine(const EngineConfig& config, Bytes chunk, Bytes host, std::uint32_t seed, bool places) {
  g_late_work = new LateWork;
  g_late_work->begin(seed);
  const std::size_t most = 8 * config.budget_chunks + 4096;
  auto driver = std::make_unique<LateDriver>(chunk, most, *g_late_work, Compute::at_once, places);
  return std::make_unique<Engine>(std::move(driver), make_ram_store(chunk, host), config);
}

}  // namespace

void bind_probing(py::module_& m) {
  using Unlocked = py::call_guard<py::gil_scoped_release>;
  // In the place of start(): torch's tensors on an ordered device whose copies happen late.
  m.def(
      "start_late",
      [](std::size_t budget_chunks, Bytes chunk, Bytes host, const std::string& policy, Bytes min_size, std::uint32_t seed,
         bool places, const std::string& leaving, bool strict) {
        if (current_engine() != nullptr) throw InvalidUse("vtensor is already enabled");
        serve_torch();
        EngineConfig config = config_of(budget_chunks, policy, "chunk", leaving, false);
        config.strict = strict;
        adopt(make_late_engine(config, chunk, host, seed, places));
        set_current_stream([](Engine& engine) { return engine.streams()->lane(nullptr); });
        attach_torch(min_size, true);
      },
      py::arg("budget_chunks"), py::arg("chunk"), py::arg("host"), py::arg("policy"), py::arg("min_size"), py::arg("seed"),
      py::arg("places") = false, py::arg("leaving") = "copy", py::arg("strict") = false);
  // What that device complained about.
  m.def("late_complaints",
        [] { return g_late_work == nullptr ? std::vector<std::string>{} : g_late_work->complaints(); });
  m.def("observing", [] { return observing(); });
  m.def(
      "evict_all",
      [] {
        current().evict_all();
        observe_if_pressed();
      },
      Unlocked());
  // Drops what of a tensor can be.
  m.def(
      "drop",
      [](std::uintptr_t a) {
        Range* range = current().find(pointer(a));
        if (range == nullptr) return;
        const PlannedMove all{range, range->serial, 0, range->chunks};
        current().remake().drop({&all, 1});
      },
      Unlocked());
  m.def(
      "drop_all",
      [] {
        std::vector<PlannedMove> all;
        current().living([&](std::span<Range* const> live) {
          for (Range* range : live) all.push_back({range, range->serial, 0, range->chunks});
        });
        current().remake().drop(all);
      },
      Unlocked());
  // How many allocations hold tensors side by side.
  m.def("shelves", [] {
    std::ptrdiff_t count = 0;
    current().living([&](std::span<Range* const> live) {
      count = std::count_if(live.begin(), live.end(), [](const Range* range) { return range->tenants.load() != 0; });
    });
    return count;
  });
}

}  // namespace vt
