// Threads that take turns: what one hands to the next.
//
// Covers: torch's state of a thread, and the recording. Leaves: both to torch_turns.h and thread_state.h.

#include "iteration/thread_state.h"
#include "python/module.h"
#include "torch/torch_turns.h"

namespace py = pybind11;

namespace vt {

void bind_turns(py::module_& m) {
  py::class_<TorchState>(m, "TorchState").def(py::init<>()).def("set", &TorchState::set);
  // Names the calling thread for pass_turn().
  m.def("this_thread", [] { return reinterpret_cast<std::uintptr_t>(&this_thread()); });
  // The iteration of the calling thread, if it is recorded, goes on in another that lives.
  m.def("pass_turn", [](std::uintptr_t to) { pass_turn(*reinterpret_cast<const Thread*>(to)); });
}

}  // namespace vt
