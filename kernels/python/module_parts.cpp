// Single parts of the core as Python objects, for the property tests: a driver that can be told to fail among them.

#include <cstring>
#include <set>

#include "device/driver_host.h"
#include "process/fault_handler.h"
#include "python/engines.h"
#include "python/module.h"
#include "process/registry.h"
#include "testing/driver_inject.h"

namespace py = pybind11;

namespace vt {
namespace {

using Unlocked = py::call_guard<py::gil_scoped_release>;

// An engine of its own, driven address by address.
struct TestEngine {
  InjectDriver* inject = nullptr;  // the engine's
  Engine* engine;
  std::vector<Use> pins;

  TestEngine(std::size_t budget, Bytes chunk, std::size_t slots, const std::string& spill_dir, const std::string& policy,
             const std::string& granularity, bool raise_oversize, double link) {
    const EngineConfig config = config_of(budget, policy, granularity, "copy", raise_oversize);
    engine = adopt_for_faults(make_host_engine({config, chunk, slots * chunk, spill_dir, link}, [this](auto driver) {
      auto failing = std::make_unique<InjectDriver>(std::move(driver));
      inject = failing.get();
      return failing;
    }));
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
      use = whole(*range, write);
    } else {
      engine->pin_and_fetch({&use, 1}, "test");
    }
    pins.push_back(use);
    return pins.size() - 1;
  }
};

}  // namespace

void bind_parts(py::module_& m) {
  py::class_<HostDriver>(m, "HostDriver")
      .def(py::init<Bytes, double>(), py::arg("chunk"), py::arg("link") = 0.0)
      .def("live", [](const HostDriver& d) { return to_dict(d.live()); });

  py::class_<ChunkPool>(m, "ChunkPool")
      .def(py::init<HostDriver&, std::size_t>(), py::keep_alive<1, 2>())
      .def("acquire",
           [](ChunkPool& pool, bool oldest) -> std::optional<ChunkId> {
             ChunkId chunk = kNone;
             const auto which = oldest ? ChunkPool::Take::oldest : ChunkPool::Take::newest;
             return pool.acquire(&chunk, which).ok() ? std::optional(chunk) : std::nullopt;
           },
           py::arg("oldest") = false)
      .def("acquire_leaving",
           [](ChunkPool& pool) -> std::optional<ChunkId> {
             ChunkId chunk = kNone;
             return pool.acquire_leaving(&chunk) ? std::optional(chunk) : std::nullopt;
           })
      .def("take", &ChunkPool::take)
      .def("release", &ChunkPool::release)
      .def("release_leaving", &ChunkPool::release_leaving)
      .def("settle", [](ChunkPool& pool, const std::set<ChunkId>& left) {
        pool.settle([&](ChunkId chunk) { return left.contains(chunk); });
      })
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
      .def("residency", [](TestEngine& t, std::uintptr_t a) { return to_dict(t.engine->inspect().residency(pointer(a))); })
      .def("export_address", [](TestEngine& t, std::uintptr_t a) { t.engine->export_address(pointer(a)); })
      .def("export_for_a_call",
           [](TestEngine& t, std::uintptr_t a) { return t.engine->export_address(pointer(a), Export::for_a_call); })
      .def("end_export", [](TestEngine& t, std::uintptr_t a) { t.engine->export_address(pointer(a), Export::call_ended); })
      .def("evict_all", [](TestEngine& t) { t.engine->evict_all(); }, Unlocked())
      .def("resize", [](TestEngine& t, std::size_t n) { t.engine->resize(n); }, Unlocked())
      .def("detach", [](TestEngine& t) { t.engine->detach(); })
      .def("drained", [](TestEngine& t) { return t.engine->drained(); })
      .def("validate", [](TestEngine& t) { return t.engine->inspect().validate(); })
      .def("snapshot", [](TestEngine& t) { return to_dict(t.engine->inspect().snapshot()); })
      .def("fail", [](TestEngine& t, const std::string& call, std::uint64_t nth, std::uint64_t times) {
             t.inject->fail(call, nth, times);
           }, py::arg("call"), py::arg("nth") = 1, py::arg("times") = 1)
      .def("delay", [](TestEngine& t, const std::string& call, std::uint64_t us) { t.inject->delay(call, us); })
      .def("calls", [](TestEngine& t, const std::string& call) { return t.inject->calls(call); })
      .def("clear_faults", [](TestEngine& t) { t.inject->clear(); });
}

}  // namespace vt
