// Tensors side by side in one allocation.
//
// Covers: asking and moving, by what torch knows a tensor by (`Tensor._cdata`).
// Leaves: which tensors (vtensor/session/shelves.py), all else to torch_shelves.h.

#include "python/module.h"
#include "torch/torch_shelves.h"

namespace py = pybind11;

namespace vt {
namespace {

c10::TensorImpl* tensor_at(std::uintptr_t cdata) { return reinterpret_cast<c10::TensorImpl*>(cdata); }

}  // namespace

void bind_shelves(py::module_& m) {
  m.def("may_move", [](std::uintptr_t cdata) { return may_move(*tensor_at(cdata)); });
  m.def("whose_memory", [](std::uintptr_t cdata) {
    switch (whose_memory(*tensor_at(cdata))) {
      case Whose::allocator: return "allocator";
      case Whose::lender: return "lender";
      case Whose::other: break;
    }
    return "other";
  });
  m.def("swap_memory", [](std::uintptr_t a, std::uintptr_t b) { swap_memory(*tensor_at(a), *tensor_at(b)); });
  m.def(
      "put_on_shelf",
      [](const std::vector<std::uintptr_t>& cdata) {
        std::vector<c10::TensorImpl*> tensors;
        for (const std::uintptr_t one : cdata) tensors.push_back(tensor_at(one));
        put_on_shelf(tensors);
      },
      py::call_guard<py::gil_scoped_release>());
}

}  // namespace vt
