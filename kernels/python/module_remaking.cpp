// What can be recomputed.
//
// Covers: which operations are seen; what verifying found.
// Leaves: all of it to torch_seen.h and engine/remake.h.

#include <map>

#include "process/registry.h"
#include "python/module.h"
#include "torch/torch_remaker.h"
#include "torch/torch_seen.h"
#include "torch/torch_verify.h"

namespace py = pybind11;

namespace vt {
namespace {

using Unlocked = py::call_guard<py::gil_scoped_release>;

// Ends when Python forgets it, if not before: an interrupt may come between any two lines.
struct Changing {
  Changing() : change(current_engine()) {}
  ~Changing() {
    const py::gil_scoped_release unlocked;  // what is recomputed may need it
    change.end();
  }
  KernelsChange change;
};

}  // namespace

void bind_remaking(py::module_& m) {
  // Which operations are seen from now on: see torch_seen.h.
  m.def(
      "see",
      [](const std::string& what, bool verify) {
        const std::map<std::string, Seeing> known{
            {"nothing", Seeing::nothing}, {"planned", Seeing::planned}, {"noted", Seeing::noted}, {"all", Seeing::all}};
        see(current(), known.at(what), verify);
      },
      py::arg("what"), py::arg("verify") = false, Unlocked());
  py::class_<Changing>(m, "KernelsChange")
      .def(py::init<>(), Unlocked())
      .def("end", [](Changing& changing) { changing.change.end(); }, Unlocked());
  // By operator: how often what it made was the same and was not, how often it was not seen, and why.
  m.def("verified", [] {
    py::list found;
    for (const Verified& one : verified()) {
      found.append(py::make_tuple(one.name, one.same, one.different, one.not_seen, one.why_not));
    }
    return found;
  });
}

}  // namespace vt
