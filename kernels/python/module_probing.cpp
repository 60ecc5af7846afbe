// The running session as tests and benchmarks drive it: nothing of the product calls these.
//
// Covers: a session on a late device; what leaves when it is told to; how much is observed, and moved side by side.
// Leaves: single parts, without a session (module_parts.cpp).

#include <algorithm>

#include "iteration/thread_state.h"
#include "process/registry.h"
#include "python/module.h"
#include "torch/torch_bridge.h"
#include "torch/torch_observer.h"

namespace py = pybind11;

namespace vt {

void bind_probing(py::module_& m) {
  using Unlocked = py::call_guard<py::gil_scoped_release>;
  // In the place of start(): torch's tensors on an ordered device whose copies happen late.
  m.def(
      "start_late",
      [](std::size_t budget_chunks, Bytes chunk, Bytes host, const std::string& policy, Bytes min_size, std::uint32_t seed,
         bool places, const std::string& leaving, bool strict) {
        if (current_engine() != nullptr) throw InvalidUse("vtensor is already enabled");
        serve_torch();
        adopt(make_late_engine(budget_chunks, chunk, host, policy, leaving, seed, places, strict));
        set_current_stream([](Engine& engine) { return engine.streams()->lane(nullptr); });
        attach_torch(min_size, true);
      },
      py::arg("budget_chunks"), py::arg("chunk"), py::arg("host"), py::arg("policy"), py::arg("min_size"), py::arg("seed"),
      py::arg("places") = false, py::arg("leaving") = "copy", py::arg("strict") = false);
  m.def("late_complaints", [] { return late_complaints(); });
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
