// Recorded iterations once more, on a modelled GPU: how long a step would take there, with and without a plan.
//
// Covers: asking the engine and the plan runner for what an iteration of a trace asked for, as the observer and the allocator do.
// Leaves: the device (driver_model.h), traces (lgm/), what is compared (tests/core/test_modelled_gpu.py).

#include <algorithm>
#include <utility>

#include "testing/driver_model.h"
#include "python/module.h"
#include "iteration/thread_state.h"

namespace py = pybind11;

namespace vt {
namespace {

using Lane = Ticket::Lane;

class Replay {
 public:
  Replay(const py::object& trace, std::size_t budget_chunks, const ModelCosts& costs, std::uint64_t launch_ns)
      : launch_ns_(launch_ns) {
    const auto ints = [&](const char* name) { return trace.attr(name).cast<std::vector<std::int64_t>>(); };
    const auto names = trace.attr("names").cast<std::vector<std::string>>();
    const auto chunk = trace.attr("chunk_bytes").cast<Bytes>();
    for (const std::int64_t name : ints("op_name")) rows_.push_back({operator_id(names.at(static_cast<std::size_t>(name)))});
    const auto ns = ints("op_ns"), last = ints("op_last");
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      rows_[i].ns = static_cast<std::uint64_t>(ns[i]);
      rows_.at(static_cast<std::size_t>(last[i])).ends.push_back(static_cast<std::uint32_t>(i));
    }
    const auto bytes = ints("tensor_bytes"), born = ints("tensor_born"), died = ints("tensor_died");
    for (std::size_t t = 0; t < bytes.size(); ++t) {
      bytes_.push_back(static_cast<Bytes>(bytes[t]));
      if (born[t] >= 0) rows_.at(static_cast<std::size_t>(born[t])).births.push_back(t);
      if (died[t] >= 0) rows_.at(static_cast<std::size_t>(died[t])).deaths.push_back(t);
    }
    const auto op = ints("use_op"), tensor = ints("use_tensor"), first = ints("use_first"), end = ints("use_last"),
               write = ints("use_write");
    for (std::size_t u = 0; u < op.size(); ++u) {
      rows_.at(static_cast<std::size_t>(op[u])).uses.push_back(
          {static_cast<std::size_t>(tensor[u]), static_cast<std::uint32_t>(first[u]), static_cast<std::uint32_t>(end[u]), write[u] != 0});
    }
    EngineConfig config;
    config.budget_chunks = budget_chunks;
    auto driver = std::make_unique<ModelDriver>(chunk, costs);
    device_ = driver.get();
    engine_ = std::make_unique<Engine>(std::move(driver), make_ram_store(chunk, Bytes{1} << 38), config);
    stream_ = engine_->streams()->lane(nullptr);
    live_.resize(bytes_.size());
    // What is there when an iteration begins: tensors that last, and those that an iteration leaves to the next.
    for (std::size_t t = 0; t < bytes_.size(); ++t) {
      if (born[t] < 0 || (died[t] >= 0 && died[t] < born[t])) allocate(t, false);
    }
    runner_.boundary(*engine_);
    begun_ = device_->now();
  }

  ~Replay() {
    for (Range*& range : live_) free(range, false);
    engine_->detach();
  }

  // Seconds an iteration takes, to the end of all that was asked of the device.
  double iteration() {
    for (const Row& row : rows_) replay(row);
    device_->join(stream_);
    const std::uint64_t now = device_->now();
    return static_cast<double>(now - std::exchange(begun_, now)) / 1e9;
  }

  bool boundary() { return runner_.boundary(*engine_) == Finding::repeated; }
  py::dict recorded() const { return to_dict(runner_.last()); }
  void install(const py::dict& plan) { runner_.install(plan_from(plan)); }
  py::dict snapshot() const { return to_dict(engine_->inspect().snapshot()); }
  std::uint64_t planned() const { return runner_.counters().planned; }

 private:
  struct UseOf {
    std::size_t tensor;
    std::uint32_t first, last;
    bool write;
  };
  struct Row {
    OpId op;
    std::uint64_t ns = 0;
    std::vector<std::size_t> births = {}, deaths = {};
    std::vector<UseOf> uses = {};
    std::vector<std::uint32_t> ends = {};  // rows whose operations end with this one
  };

  Range* allocate(std::size_t tensor, bool pinned) {
    free(live_[tensor], true);  // born once more and freed nowhere: the old one is replaced
    return live_[tensor] = engine_->find(engine_->allocate(bytes_[tensor], "replay", stream_, pinned));
  }

  void free(Range*& range, bool keep) {
    if (range != nullptr) engine_->free(reinterpret_cast<void*>(range->base), keep);
    range = nullptr;
  }

  void replay(const Row& row) {
    device_->spend(launch_ns_);
    engine_->tick();
    runner_.row(*engine_, row.op, stream_);
    std::vector<Use> uses, missing;
    for (const UseOf& use : row.uses) {
      Range* range = live_[use.tensor];
      if (range == nullptr || std::find(row.births.begin(), row.births.end(), use.tensor) != row.births.end()) continue;
      Use wanted = engine_->whole(*range, use.write);
      if (engine_->try_pin(*range, use.write)) {
        uses.push_back(wanted);
      } else {
        missing.push_back({range, use.first, std::min(use.last, range->chunks), use.write, false});
      }
      runner_.use(*range, {range, use.first, std::min(use.last, range->chunks), use.write, true});
    }
    if (!missing.empty()) engine_->pin_and_fetch(missing, "replay");
    uses.insert(uses.end(), missing.begin(), missing.end());
    for (const Use& use : uses) engine_->streams()->ready_on(stream_, *use.range);
    for (const std::size_t tensor : row.births) {
      Range* range = allocate(tensor, true);
      runner_.born(*range);
      uses.push_back(engine_->whole(*range, true));
      engine_->streams()->ready_on(stream_, *range);
    }
    device_->compute(stream_, row.ns);
    engine_->streams()->pulse(stream_);
    for (const Use& use : uses) {
      engine_->streams()->used_on(stream_, *use.range);
      engine_->unpin(use);
    }
    for (const std::uint32_t ended : row.ends) runner_.row_ends(ended);
    for (const std::size_t tensor : row.deaths) {
      if (live_[tensor] != nullptr) free(live_[tensor], runner_.died(*live_[tensor]));
    }
  }

  const std::uint64_t launch_ns_;
  std::vector<Row> rows_;
  std::vector<Bytes> bytes_;
  ModelDriver* device_ = nullptr;  // the engine's
  std::unique_ptr<Engine> engine_;
  Lane stream_ = Lane::none;
  PlanRunner runner_;
  std::vector<Range*> live_;       // by tensor; nullptr: not alive
  std::uint64_t begun_ = 0;
};

}  // namespace

void bind_replay(py::module_& m) {
  py::class_<Replay>(m, "Replay")
      .def(py::init([](const py::object& trace, std::size_t budget_chunks, double out_speed, double in_speed, std::uint64_t launch_ns,
                       std::uint64_t call_ns, std::uint64_t map_ns, std::uint64_t piece_ns) {
             return std::make_unique<Replay>(trace, budget_chunks, ModelCosts{call_ns, map_ns, piece_ns, out_speed, in_speed}, launch_ns);
           }),
           py::arg("trace"), py::arg("budget_chunks"), py::arg("out_speed"), py::arg("in_speed"), py::arg("launch_ns") = 0,
           py::arg("call_ns") = 0, py::arg("map_ns") = 0, py::arg("piece_ns") = 0)
      .def("iteration", &Replay::iteration)
      .def("boundary", &Replay::boundary)
      .def("recorded_iteration", &Replay::recorded)
      .def("install_plan", &Replay::install)
      .def("snapshot", &Replay::snapshot)
      .def_property_readonly("planned", &Replay::planned);
}

}  // namespace vt
