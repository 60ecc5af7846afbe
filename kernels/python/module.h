// What the module files share: C++ figures as Python dictionaries, and each other's functions.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "engine/engine.h"
#include "iteration/plan_runner.h"

namespace vt {

pybind11::dict to_dict(const Amount& amount);
pybind11::dict to_dict(const LiveHandles& handles);
pybind11::dict to_dict(const Residency& residency);
pybind11::dict to_dict(const Snapshot& shot);
// An iteration as arrays; indices of tensors are the recorder's.
pybind11::dict to_dict(const Recorder& recorder);
// Pre: vtensor/planning/plans.py made it of a plan that was checked. Throws InvalidUse if lengths do not fit.
std::unique_ptr<Plan> plan_from(const pybind11::dict& given);

// The product's engine; throws InvalidUse if there is none.
Engine& current();
inline const void* pointer(std::uintptr_t address) { return reinterpret_cast<const void*>(address); }

void bind_parts(pybind11::module_& m);     // module_parts.cpp
void bind_probing(pybind11::module_& m);   // module_probing.cpp
void bind_remaking(pybind11::module_& m);  // module_remaking.cpp
void bind_planning(pybind11::module_& m);  // module_planning.cpp
void bind_replay(pybind11::module_& m);    // module_replay.cpp
void bind_shelves(pybind11::module_& m);   // module_shelves.cpp
void bind_turns(pybind11::module_& m);     // module_turns.cpp
void bind_dlpack(pybind11::module_& m);    // module_dlpack.cpp
void bind_spans(pybind11::module_& m);     // module_spans.cpp
void bind_cuda(pybind11::module_& m);      // module_cuda.cpp, where torch was built with CUDA
void bind_cuda_costs(pybind11::module_& m);  // module_cuda_costs.cpp, as well

}  // namespace vt
