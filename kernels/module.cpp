// The Python face of the native core: the only file of kernels/ that knows a Python object.
//
// Covers: starting and stopping the product's engine, its figures, the primitives by address; and, for the
// property tests, the single parts with a driver that can be told to fail.
// Leaves: argument checking for people (vtensor/session.py and vtensor/config.py).

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>

#include "driver_host.h"
#include "driver_inject.h"
#include "fault_handler.h"
#include "registry.h"
#include "torch_bridge.h"

namespace py = pybind11;

namespace vt {
namespace {

using Unlocked = py::call_guard<py::gil_scoped_release>;

struct MadeEngine {
  std::unique_ptr<Engine> engine;
  InjectDriver* inject;  // owned by the engine
};

MadeEngine make_engine(std::size_t budget_chunks, Bytes chunk_bytes, Bytes host_bytes, const std::string& spill_dir,
                       const std::string& policy, const std::string& granularity, bool raise_oversize, double link,
                       bool injectable) {
  EngineConfig config;
  config.budget_chunks = budget_chunks;
  config.order = order_from(policy);
  config.granularity = granularity_from(granularity);
  config.oversize = raise_oversize ? Oversize::raise : Oversize::borrow;
  std::unique_ptr<Driver> driver = std::make_unique<HostDriver>(chunk_bytes, link);
  InjectDriver* inject = nullptr;
  if (injectable) {
    auto wrapped = std::make_unique<InjectDriver>(std::move(driver));
    inject = wrapped.get();
    driver = std::move(wrapped);
  }
  auto store = spill_dir.empty() ? make_ram_store(chunk_bytes, host_bytes)
                                 : make_file_store(chunk_bytes, host_bytes, spill_dir);
  return {std::make_unique<Engine>(std::move(driver), std::move(store), config), inject};
}

py::dict to_dict(const Amount& amount) {
  py::dict d;
  d["current"] = amount.current;
  d["peak"] = amount.peak;
  d["allocated"] = amount.allocated;
  d["freed"] = amount.freed;
  return d;
}

py::dict to_dict(const LiveHandles& handles) {
  py::dict d;
  d["reservations"] = handles.reservations;
  d["chunks"] = handles.chunks;
  d["mappings"] = handles.mappings;
  d["host_mappings"] = handles.host_mappings;
  d["copies"] = handles.copies;
  return d;
}

py::dict to_dict(const Snapshot& shot) {
  const Counters& c = shot.counters;
  py::dict d;
  d["tensor_bytes"] = to_dict(c.tensor_bytes);
  d["wanted_bytes"] = to_dict(c.wanted_bytes);
  d["absent_bytes"] = to_dict(c.absent_bytes);
  d["borrowed_bytes"] = to_dict(c.borrowed_bytes);
  d["chunk_bytes"] = shot.chunk_bytes;
  d["budget_chunks"] = shot.budget_chunks;
  d["held_chunks"] = shot.held_chunks;
  d["peak_held_chunks"] = shot.peak_held_chunks;
  d["cached_chunks"] = shot.cached_chunks;
  d["ranges"] = shot.ranges;
  d["slots_used"] = shot.slots_used;
  d["slots_capacity"] = shot.slots_capacity;
  d["slots_peak"] = shot.slots_peak;
  d["moved_out"] = shot.moved_out;
  d["moved_in"] = shot.moved_in;
  d["copies_out"] = shot.copies_out;
  d["copies_in"] = shot.copies_in;
  d["allocations"] = c.allocations;
  d["reused"] = c.reused;
  d["remaps"] = c.remaps;
  d["evictions"] = c.evictions;
  d["discards"] = c.discards;
  d["cancels"] = c.cancels;
  d["faults"] = c.faults;
  d["oversize"] = c.oversize;
  d["failures"] = c.failures;
  d["wait_ns"] = c.wait_ns;
  d["host"] = shot.host_name;
  d["handles"] = to_dict(shot.handles);
  return d;
}

py::dict to_dict(const Residency& residency) {
  py::dict d;
  d["chunks"] = residency.chunks;
  for (std::size_t s = 0; s < kStates; ++s) d[name_of(static_cast<State>(s))] = residency.in_state[s];
  d["clean"] = residency.clean;
  return d;
}

Engine& current() {
  Engine* engine = current_engine();
  if (engine == nullptr) throw InvalidUse("vtensor is not enabled");
  return *engine;
}

const void* pointer(std::uintptr_t address) { return reinterpret_cast<const void*>(address); }

void bind_product(py::module_& m) {
  m.def(
      "start",
      [](std::size_t budget_chunks, Bytes chunk, Bytes host, const std::string& spill_dir, const std::string& policy,
         const std::string& granularity, bool raise_oversize, double link, Bytes min_size, bool observe_always) {
        if (current_engine() != nullptr) throw InvalidUse("vtensor is already enabled");
        adopt(make_engine(budget_chunks, chunk, host, spill_dir, policy, granularity, raise_oversize, link, false).engine);
        attach_torch(min_size, observe_always);
      },
      py::arg("budget_chunks"), py::arg("chunk"), py::arg("host"), py::arg("spill_dir"), py::arg("policy"),
      py::arg("granularity"), py::arg("raise_oversize"), py::arg("link"), py::arg("min_size"), py::arg("observe_always"));
  m.def("stop", [] {
    detach_torch();
    retire_current();
  });
  m.def(
      "resize",
      [](std::size_t chunks) {
        current().resize(chunks);
        observe_if_pressed();
      },
      Unlocked());
  m.def("snapshot", [] { return to_dict(current().snapshot()); });
  m.def("reset_peaks", [] {
    current().reset_peaks();
    reset_unmanaged_peak();
  });
  m.def("validate", [] { return current().validate(); }, Unlocked());
  m.def(
      "evict_all",
      [] {
        current().evict_all();
        observe_if_pressed();
      },
      Unlocked());
  m.def("observing", [] { return observing(); });
  m.def("unmanaged", [] {
    const Unmanaged u = unmanaged();
    py::dict d;
    d["current"] = u.current;
    d["peak"] = u.peak;
    d["allocated"] = u.allocated;
    d["freed"] = u.freed;
    return d;
  });
  m.def("manages", [](std::uintptr_t a) { return engine_of(pointer(a)) != nullptr; });
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
    return to_dict(engine != nullptr ? engine->residency(pointer(a)) : Residency{});
  });
  m.def("pieces", [](std::uintptr_t a) {
    py::list pieces;
    if (Engine* engine = engine_of(pointer(a))) {
      for (const Piece& piece : engine->pieces(pointer(a))) {
        pieces.append(py::make_tuple(piece.address, piece.bytes, name_of(piece.state), piece.clean, piece.took_from));
      }
    }
    return pieces;
  });
  m.def("fits", [] {
    Engine* engine = current_engine();
    return engine == nullptr || engine->fits();
  });
  m.def("manage_all_sizes", [](bool all) { manage_all_sizes(all); });
  m.def("export_address", [](std::uintptr_t a) {
    py::gil_scoped_release unlocked;
    if (Engine* engine = engine_of(pointer(a))) engine->export_address(pointer(a));
  });
  m.def("arm_fault_handler", [] { arm_fault_handler(); });
}

// --- parts, for the tests ----------------------------------------------------------------------------------

// An engine of its own, driven address by address.
struct TestEngine {
  MadeEngine made;
  Engine* engine;
  std::vector<Use> pins;

  TestEngine(std::size_t budget, Bytes chunk, std::size_t slots, const std::string& spill_dir, const std::string& policy,
             const std::string& granularity, bool raise_oversize, double link)
      : made(make_engine(budget, chunk, slots * chunk, spill_dir, policy, granularity, raise_oversize, link, true)) {
    engine = adopt_for_faults(std::move(made.engine));
  }

  static Engine* adopt_for_faults(std::unique_ptr<Engine> engine) {
    arm_fault_handler();
    return adopt_aside(std::move(engine));
  }

  std::size_t pin(std::uintptr_t address, Bytes from, Bytes to, bool write) {
    Range* range = engine->find(pointer(address));
    if (range == nullptr) throw InvalidUse("no such range");
    engine->tick();
    Use use = engine->part(*range, from, to, write);
    if (from == 0 && to >= range->bytes && engine->try_pin(*range, write)) {
      use = engine->whole(*range, write);
    } else {
      engine->pin_and_fetch({&use, 1}, "test");
    }
    pins.push_back(use);
    return pins.size() - 1;
  }
};

void bind_parts(py::module_& m) {
  py::class_<HostDriver>(m, "HostDriver")
      .def(py::init<Bytes, double>(), py::arg("chunk"), py::arg("link") = 0.0)
      .def("live", [](const HostDriver& d) { return to_dict(d.live()); });

  py::class_<ChunkPool>(m, "ChunkPool")
      .def(py::init<HostDriver&, std::size_t>(), py::keep_alive<1, 2>())
      .def("acquire",
           [](ChunkPool& pool) -> std::optional<ChunkId> {
             ChunkId chunk = kNone;
             return pool.acquire(&chunk).ok() ? std::optional(chunk) : std::nullopt;
           })
      .def("release", &ChunkPool::release)
      .def("resize", [](ChunkPool& pool, std::size_t n) { return pool.resize(n).ok(); })
      .def("trim", &ChunkPool::trim)
      .def("validate", &ChunkPool::validate)
      .def_property_readonly("held", &ChunkPool::held)
      .def_property_readonly("free", &ChunkPool::free)
      .def_property_readonly("peak", &ChunkPool::peak_held)
      .def_property_readonly("capacity", &ChunkPool::capacity);

  py::class_<AddressSpace>(m, "AddressSpace")
      .def(py::init<Address, std::size_t, Bytes>())
      .def("acquire", &AddressSpace::acquire)
      .def("release", &AddressSpace::release)
      .def("validate", &AddressSpace::validate)
      .def_property_readonly("free_chunks", &AddressSpace::free_chunks)
      .def_property_readonly("runs", &AddressSpace::runs);

  m.def("next_state", [](const std::string& state, const std::string& event) -> std::optional<std::string> {
    for (std::size_t s = 0; s < kStates; ++s) {
      if (state != name_of(static_cast<State>(s))) continue;
      for (std::size_t e = 0; e < kEvents; ++e) {
        if (event != name_of(static_cast<Event>(e))) continue;
        const auto next = next_state(static_cast<State>(s), static_cast<Event>(e));
        return next ? std::optional<std::string>(name_of(*next)) : std::nullopt;
      }
    }
    throw InvalidUse("no such state or event");
  });

  py::class_<TestEngine>(m, "TestEngine")
      .def(py::init<std::size_t, Bytes, std::size_t, const std::string&, const std::string&, const std::string&, bool,
                    double>(),
           py::arg("budget"), py::arg("chunk") = 4096, py::arg("slots") = 1024, py::arg("spill_dir") = "",
           py::arg("policy") = "lru", py::arg("granularity") = "chunk", py::arg("raise_oversize") = false,
           py::arg("link") = 0.0)
      .def("allocate",
           [](TestEngine& t, Bytes bytes) { return reinterpret_cast<std::uintptr_t>(t.engine->allocate(bytes, "test")); },
           Unlocked())
      .def("free", [](TestEngine& t, std::uintptr_t a) { t.engine->free(reinterpret_cast<void*>(a)); }, Unlocked())
      .def("pin", &TestEngine::pin, Unlocked())
      .def("unpin", [](TestEngine& t, std::size_t pin) { t.engine->unpin(t.pins.at(pin)); }, Unlocked())
      // Plain accesses to the tensor's addresses: what is absent faults, and is brought.
      .def("write",
           [](TestEngine&, std::uintptr_t a, const std::string& bytes) {
             std::memcpy(reinterpret_cast<void*>(a), bytes.data(), bytes.size());
           })
      .def("read",
           [](TestEngine&, std::uintptr_t a, Bytes bytes) {
             return py::bytes(reinterpret_cast<const char*>(a), bytes);
           })
      .def("merge", [](TestEngine& t, std::uintptr_t a) { return to_dict(t.engine->merge(pointer(a))); })
      .def("residency", [](TestEngine& t, std::uintptr_t a) { return to_dict(t.engine->residency(pointer(a))); })
      .def("export_address", [](TestEngine& t, std::uintptr_t a) { t.engine->export_address(pointer(a)); })
      .def("evict_all", [](TestEngine& t) { t.engine->evict_all(); }, Unlocked())
      .def("resize", [](TestEngine& t, std::size_t n) { t.engine->resize(n); }, Unlocked())
      .def("detach", [](TestEngine& t) { t.engine->detach(); })
      .def("drained", [](TestEngine& t) { return t.engine->drained(); })
      .def("validate", [](TestEngine& t) { return t.engine->validate(); })
      .def("snapshot", [](TestEngine& t) { return to_dict(t.engine->snapshot()); })
      .def("fail", [](TestEngine& t, const std::string& call, std::uint64_t nth, std::uint64_t times) {
             t.made.inject->fail(call, nth, times);
           }, py::arg("call"), py::arg("nth") = 1, py::arg("times") = 1)
      .def("delay", [](TestEngine& t, const std::string& call, std::uint64_t us) { t.made.inject->delay(call, us); })
      .def("calls", [](TestEngine& t, const std::string& call) { return t.made.inject->calls(call); })
      .def("clear_faults", [](TestEngine& t) { t.made.inject->clear(); });
}

}  // namespace
}  // namespace vt

PYBIND11_MODULE(_vtensor_native, m) {
  m.doc() = "Native core of vtensor. See vtensor/native.py.";
  py::register_exception<vt::InvalidUse>(m, "InvalidUse", PyExc_ValueError);
  py::register_exception<vt::OutOfMemory>(m, "OutOfMemory", PyExc_MemoryError);
  vt::bind_product(m);
  auto parts = m.def_submodule("parts", "Single parts of the core, for property tests.");
  vt::bind_parts(parts);
}
