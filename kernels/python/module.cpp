// The Python face of the native core: the module files are the only ones of kernels/ that know Python objects.
//
// Covers: starting and stopping the product's engine, the primitives by address. module_planning.cpp has traces and plans,
// module_parts.cpp single parts and module_probing.cpp this engine for the tests, module_figures.cpp what all share.
// Leaves: argument checking for people (vtensor/session/enabling.py and vtensor/settings/config.py).

#include "process/fault_handler.h"
#include "iteration/given.h"
#include "iteration/managed.h"
#include "python/engines.h"
#include "python/module.h"
#include "process/registry.h"
#include "torch/torch_bridge.h"
#include "torch/torch_observer.h"
#include "torch/torch_seen.h"
#include "torch/torch_traits.h"

namespace py = pybind11;

namespace vt {
namespace {

using Unlocked = py::call_guard<py::gil_scoped_release>;

void bind_session(py::module_& m) {
  m.def(
      "start",
      [](std::size_t budget_chunks, Bytes chunk, Bytes host, const std::string& spill_dir, const std::string& policy,
         const std::string& granularity, const std::string& leaving, bool raise_oversize, double link, Bytes min_size,
         bool observe_always) {
        if (current_engine() != nullptr) throw InvalidUse("vtensor is already enabled");
        serve_torch();
        const EngineConfig config = config_of(budget_chunks, policy, granularity, leaving, raise_oversize);
        adopt(make_host_engine({config, chunk, host, spill_dir, link}));
        attach_torch(min_size, observe_always);
      },
      py::arg("budget_chunks"), py::arg("chunk"), py::arg("host"), py::arg("spill_dir"), py::arg("policy"),
      py::arg("granularity"), py::arg("leaving"), py::arg("raise_oversize"), py::arg("link"), py::arg("min_size"),
      py::arg("observe_always"));
  m.def(
      "stop",
      [] {
        Engine* engine = current_engine();
        if (engine == nullptr) return;  // never started, or stopped already
        engine->detach();
        stop_seeing(*engine);
        detach_torch();
        retire_current();
      },
      Unlocked());
  m.def(
      "resize",
      [](std::size_t chunks) {
        current().resize(chunks);
        observe_if_pressed();
      },
      Unlocked());
  m.def("manage", [](const std::string& what) {
    manage(what == "all" ? Managing::all : what == "none" ? Managing::none : Managing::large);
  });
  m.def("in_forked_child", &in_forked_child);
}

void bind_figures(py::module_& m) {
  m.def("snapshot", [] {
    Snapshot shot;
    {
      py::gil_scoped_release unlocked;  // who waits for the engine's lock must not keep the watchdog from looking
      shot = current().inspect().snapshot();
    }
    return to_dict(shot);
  });
  // For watchdog.py, which must never wait: steps so far, and whether a call is inside.
  m.def("progress", [] {
    const Progress found = progress();
    return py::make_tuple(found.steps, found.busy != nullptr);
  });
  // Figures of the engine with a call inside, and what is broken; None if its lock is held.
  m.def("look", []() -> py::object {
    Snapshot shot;
    std::string broken;
    Engine* engine = progress().busy;
    if (engine == nullptr || !engine->inspect().look(&shot, &broken)) return py::none();
    py::dict d = to_dict(shot);
    d["broken"] = broken;
    return d;
  });
  m.def("reset_peaks", [] {
    current().inspect().reset_peaks();
    reset_unmanaged_peak();
  });
  m.def("validate", [] { return current().inspect().validate(); }, Unlocked());
  m.def("pressed", [] { return current_engine() != nullptr && current_engine()->pressed(); });
  m.def("unmanaged", [] {
    const Unmanaged u = unmanaged();
    py::dict d;
    d["current"] = u.current;
    d["peak"] = u.peak;
    d["allocated"] = u.allocated;
    d["freed"] = u.freed;
    return d;
  });
  m.def("fits", [] {
    Engine* engine = current_engine();
    return engine == nullptr || engine->inspect().fits();
  });
}

// Tensors by their addresses.
void bind_primitives(py::module_& m) {
  // Whether the session that is there counts it: a tensor may have outlived the one that it was made in.
  m.def("manages", [](std::uintptr_t a) {
    Engine* engine = engine_of(pointer(a));
    return engine != nullptr && engine == current_engine();
  });
  m.def("merge", [](std::uintptr_t a) {
    Residency result;
    {
      py::gil_scoped_release unlocked;
      if (Engine* engine = engine_of(pointer(a))) result = engine->merge(pointer(a));
    }
    return to_dict(result);
  });
  m.def("residency", [](std::uintptr_t a) {
    Engine* engine = engine_of(pointer(a));
    return to_dict(engine != nullptr ? engine->inspect().residency(pointer(a)) : Residency{});
  });
  m.def("pieces", [](std::uintptr_t a) {
    py::list pieces;
    if (Engine* engine = engine_of(pointer(a))) {
      for (const Piece& piece : engine->inspect().pieces(pointer(a))) {
        pieces.append(py::make_tuple(piece.address, piece.bytes, name_of(piece.state), piece.clean, piece.took_from));
      }
    }
    return pieces;
  });
}

void bind_lending(py::module_& m) {
  // For vtensor/harmony/hosting/hosted.py: memory of the host that its owner lends to tensors.
  m.def(
      "lend",
      [](std::uintptr_t a, std::uintptr_t memory, Bytes bytes) {
        Engine* engine = engine_of(pointer(a));
        return engine != nullptr && engine->lending().lend(pointer(a), pointer(memory), bytes);
      },
      Unlocked());
  m.def(
      "lent",
      [](std::uintptr_t a, std::uintptr_t memory, Bytes bytes) {
        Engine* engine = engine_of(pointer(a));
        return engine != nullptr && engine->lending().lent(pointer(a), pointer(memory), bytes);
      },
      Unlocked());
  m.def(
      "take_back",
      [](std::uintptr_t memory, Bytes bytes) {
        for (Engine* engine : open_engines()) engine->lending().take_back(pointer(memory), bytes);
      },
      Unlocked());
}

// For vtensor/hooks: what the core has to be told of.
void bind_hooks(py::module_& m) {
  // Tensors that code in Python hands to kernels past torch's operations (backwards.py, storages.py, compiled.py).
  m.def("ordered", [] { return current().streams() != nullptr; });
  m.def("keep", [](const std::vector<Address>& addresses, bool unseen) { keep(current(), addresses, unseen); }, Unlocked());
  // Whether a torch.autograd.Function of that name may write what is known. Where no operation is observed nothing is.
  m.def("writes_unseen", [](const std::string& name) { return observing() && !writes_by_operations(name); });
  m.def("close_eyes", &close_eyes);
  m.def("open_eyes", &open_eyes);
  m.def("kept", [] { return current_engine() != nullptr ? kept(current()) : std::size_t{0}; });
  m.def("release_kept", [](std::size_t but) {
    if (current_engine() != nullptr) release_kept(current(), but);
  });
  // Its tensor is about to be written unseen.
  m.def(
      "before_write",
      [](std::uintptr_t a) {
        Engine* engine = engine_of(pointer(a));
        Range* range = engine != nullptr ? engine->find(pointer(a)) : nullptr;
        if (range != nullptr && range->known.load()) engine->remake().before_write(*range);
      },
      Unlocked());
  m.def(
      "export_address",
      [](std::uintptr_t a) {
        if (Engine* engine = engine_of(pointer(a))) engine->export_address(pointer(a));
      },
      Unlocked());
  // Ends by itself when Python forgets it: an interrupt may come between any two lines.
  py::class_<Given>(m, "Given")
      .def(py::init<>())
      .def("add", [](Given& given, const std::vector<Address>& addresses) { given.add(addresses); }, Unlocked())
      .def("add_what_is_made", &Given::add_what_is_made)
      .def("end", &Given::end, Unlocked());
  m.def("arm_fault_handler", &arm_fault_handler);
  m.def("note_pythons_handler", &note_pythons_handler);
}

}  // namespace

Engine& current() {
  Engine* engine = current_engine();
  if (engine == nullptr) throw InvalidUse("vtensor is not enabled");
  return *engine;
}

}  // namespace vt

PYBIND11_MODULE(_vtensor_native, m) {
  m.doc() = "Native core of vtensor. See vtensor/native/library.py.";
  py::register_exception<vt::InvalidUse>(m, "InvalidUse", PyExc_ValueError);
  py::register_exception<vt::OutOfMemory>(m, "OutOfMemory", PyExc_MemoryError);
  vt::bind_session(m);
  vt::bind_figures(m);
  vt::bind_primitives(m);
  vt::bind_lending(m);
  vt::bind_hooks(m);
  vt::bind_planning(m);
  vt::bind_remaking(m);
  vt::bind_shelves(m);
  vt::bind_turns(m);
  vt::bind_dlpack(m);
  vt::bind_spans(m);
  auto parts = m.def_submodule("parts", "Single parts of the core, for property tests.");
  vt::bind_parts(parts);
  vt::bind_probing(parts);
  vt::bind_replay(parts);
#ifdef VT_CUDA
  vt::bind_cuda(m);
  vt::bind_cuda_costs(parts);
#endif
}
