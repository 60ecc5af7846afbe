// Tensors that leave by a table of C functions.
//
// Covers: the capsules, and the engine that is told. Leaves: the table to torch_dlpack.h.

#include "process/registry.h"
#include "python/module.h"
#include "torch/torch_dlpack.h"

namespace py = pybind11;

namespace vt {
namespace {

constexpr const char* kCapsule = "dlpack_exchange_api";

bool give_away(const void* address) {
  Engine* const engine = engine_of(address);
  if (engine == nullptr) return true;
  try {
    const py::gil_scoped_release unlocked;
    engine->export_address(address);
    return true;
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_BufferError, error.what());
    return false;
  }
}

}  // namespace

void bind_dlpack(py::module_& m) {
  m.def("telling_table", [](const py::capsule& torchs) {
    void* const table = PyCapsule_GetPointer(torchs.ptr(), kCapsule);
    if (table == nullptr) throw py::error_already_set();
    return py::capsule(telling_table(table, give_away), kCapsule);
  });
}

}  // namespace vt
