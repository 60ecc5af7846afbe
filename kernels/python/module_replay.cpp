// Recorded iterations once more, on a modelled GPU: how long a step would take there, with and without a plan.
//
// Covers: asking the engine and the plan runner for what an iteration of a trace asked for, as the observer and the allocator do.
// Leaves: the device (driver_model.h), traces (lgm/), what is compared (tests/core/test_modelled_gpu.py).

#include <algorithm>
#include <utility>

#include "testing/driver_model.h"
#include "python/module.h"
#include "python/replay_calls.h"
#include "iteration/operators.h"
#include "iteration/recording.h"

namespace py = pybind11;

namespace vt {
namespace {

constexpr auto kFills = static_cast<std::int64_t>(Recorder::CallOf::Again::fills);

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
      rows_.at(static_cast<std::size_t>(op[u]))
          .uses.push_back({static_cast<std::size_t>(tensor[u]), static_cast<std::uint32_t>(first[u]),
                           static_cast<std::uint32_t>(end[u]), write[u] != 0});
    }
    const auto call_first = ints("call_first"), call_last = ints("call_last"), call_again = ints("call_again");
    for (std::size_t c = 0; c < call_first.size(); ++c) {
      if (call_again[c] == 0) continue;
      add_call(static_cast<std::uint32_t>(call_first[c]), static_cast<std::uint32_t>(call_last[c]), died,
               call_again[c] == kFills);
    }
    EngineConfig config;
    config.budget_chunks = budget_chunks;
    auto driver = std::make_unique<ModelDriver>(chunk, costs);
    device_ = driver.get();
    engine_ = std::make_unique<Engine>(std::move(driver), make_ram_store(chunk, Bytes{1} << 38), config);
    stream_ = engine_->streams()->lane(nullptr);
    if (!calls_.empty()) engine_->remake().use(std::make_unique<ModelRemaker>(*engine_, *device_, stream_, launch_ns_));
    live_.resize(bytes_.size());
    // What is there when an iteration begins: tensors that last, and those that an iteration leaves to the next.
    for (std::size_t t = 0; t < bytes_.size(); ++t) {
      if (born[t] < 0 || (died[t] >= 0 && died[t] < born[t])) allocate(t, false);
    }
    runner_.boundary(*engine_);
    begun_ = device_->now();
  }

  ~Replay() {
    if (engine_->remake().on()) engine_->remake().suspend(true);
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

  bool boundary() { return runner_.boundary(*engine_) == Finding::telling; }
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
    std::optional<std::size_t> call = {};  // that begins with it
  };

  // What a call that can be run again does, by what its rows do. One that writes several tensors is not run again.
  void add_call(std::uint32_t first, std::uint32_t last, const std::vector<std::int64_t>& died, bool fills) {
    ReplayCall call;
    call.first = first;
    call.last = last;
    std::vector<std::size_t> born;
    for (std::uint32_t i = first; i <= last; ++i) {
      const Row& row = rows_.at(i);
      call.ns += row.ns;
      for (const std::size_t tensor : row.births) {
        born.push_back(tensor);
        const bool outlives = died[tensor] < static_cast<std::int64_t>(i) || died[tensor] > static_cast<std::int64_t>(last);
        outlives ? call.results.push_back(tensor) : static_cast<void>(call.scratch += bytes_[tensor]);
      }
    }
    for (std::uint32_t i = first; i <= last; ++i) {
      for (const UseOf& use : rows_[i].uses) {
        if (std::find(born.begin(), born.end(), use.tensor) != born.end()) continue;
        if (fills && use.write && !call.filled) call.filled = use.tensor;
        if (call.filled == use.tensor) continue;
        auto at = std::find(call.sources.begin(), call.sources.end(), use.tensor);
        if (at == call.sources.end()) at = call.sources.insert(at, use.tensor);
        const auto nth = static_cast<std::size_t>(at - call.sources.begin());
        if (use.write && call.written.value_or(nth) != nth) return;
        if (use.write) call.written = nth;
      }
    }
    if (call.filled) call.results.insert(call.results.begin(), *call.filled);
    rows_[first].call = calls_.size();
    calls_.push_back(std::move(call));
  }

  Range* allocate(std::size_t tensor, bool pinned) {
    free(live_[tensor], true);  // born once more and freed nowhere: the old one is replaced
    return live_[tensor] = engine_->find(engine_->allocate(bytes_[tensor], "replay", stream_, pinned, runner_.wish()));
  }

  void free(Range*& range, bool keep) {
    if (range != nullptr) engine_->free(reinterpret_cast<void*>(range->base), keep);
    range = nullptr;
  }

  void replay(const Row& row) {
    device_->spend(launch_ns_);
    engine_->tick();
    const bool sees = row.call && (runner_.sees(runner_.rows()) || runner_.asks());
    runner_.row(*engine_, row.op, stream_);
    while (runner_.has_due()) {
      engine_->remake().bring(runner_.take_due());
      runner_.go_on(*engine_);
    }
    std::vector<Use> uses, missing;
    for (const UseOf& use : row.uses) {
      Range* range = live_[use.tensor];
      if (range == nullptr || std::find(row.births.begin(), row.births.end(), use.tensor) != row.births.end()) continue;
      Use wanted = whole(*range, use.write);
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
    if (sees) begin(calls_[*row.call]);
    if (engine_->remake().on()) {
      for (const Use& use : uses) {
        if (use.write) engine_->remake().before_write(*use.range);
      }
    }
    for (const std::size_t tensor : row.births) {
      Range* range = allocate(tensor, true);
      runner_.born(*range);
      uses.push_back(whole(*range, true));
      engine_->streams()->ready_on(stream_, *range);
    }
    device_->compute(stream_, row.ns);
    engine_->streams()->pulse(stream_);
    for (const Use& use : uses) {
      engine_->streams()->used_on(stream_, *use.range);
      engine_->unpin(use);
    }
    for (const std::uint32_t ended : row.ends) runner_.row_ends(ended);
    if (begun_call_ != nullptr && runner_.rows() == begun_call_->last + 1) end();
    for (const std::size_t tensor : row.deaths) {
      if (live_[tensor] != nullptr) free(live_[tensor], runner_.died(*live_[tensor]));
    }
  }

  void begin(const ReplayCall& call) {
    auto operation = std::make_unique<ModelCall>();
    operation->ns = call.ns;
    operation->scratch = call.scratch;
    operation->overwrites = call.written;
    for (const std::size_t tensor : call.results) operation->births.push_back(bytes_[tensor]);
    std::vector<Range*> sources;
    for (const std::size_t tensor : call.sources) sources.push_back(live_[tensor]);
    if (std::count(sources.begin(), sources.end(), nullptr) > 0) return;
    begun_call_ = &call;
    step_ = engine_->remake().begin(std::move(operation), sources);
  }

  void end() {
    const ReplayCall& call = *std::exchange(begun_call_, nullptr);
    using Again = Recorder::CallOf::Again;
    runner_.call(call.first, step_ == nullptr ? Again::no : call.filled ? Again::fills : Again::yes);
    if (step_ == nullptr) return;
    std::vector<Range*> results;
    for (const std::size_t tensor : call.results) results.push_back(live_[tensor]);
    if (call.written) results.push_back(live_[call.sources[*call.written]]);
    engine_->remake().end(std::exchange(step_, nullptr), results);
  }

  const std::uint64_t launch_ns_;
  std::vector<Row> rows_;
  std::vector<ReplayCall> calls_;  // those that can be run again
  std::vector<Bytes> bytes_;
  ModelDriver* device_ = nullptr;  // the engine's
  std::unique_ptr<Engine> engine_;
  Lane stream_ = Lane::none;
  PlanRunner runner_;
  std::vector<Range*> live_;       // by tensor; nullptr: not alive
  std::uint64_t begun_ = 0;
  const ReplayCall* begun_call_ = nullptr;
  std::shared_ptr<Step> step_;     // of it
};

}  // namespace

void bind_replay(py::module_& m) {
  py::class_<Replay>(m, "Replay")
      .def(py::init([](const py::object& trace, std::size_t budget_chunks, double out_speed, double in_speed,
                       std::uint64_t launch_ns, std::uint64_t call_ns, std::uint64_t map_ns, std::uint64_t piece_ns,
                       std::size_t room) {
             const ModelCosts costs{call_ns, map_ns, piece_ns, out_speed, in_speed, room};
             return std::make_unique<Replay>(trace, budget_chunks, costs, launch_ns);
           }),
           py::arg("trace"), py::arg("budget_chunks"), py::arg("out_speed"), py::arg("in_speed"), py::arg("launch_ns") = 0,
           py::arg("call_ns") = 0, py::arg("map_ns") = 0, py::arg("piece_ns") = 0, py::arg("room") = 0)
      .def("iteration", &Replay::iteration)
      .def("boundary", &Replay::boundary)
      .def("ordered", [](const Replay&) { return true; })
      .def("recorded_iteration", &Replay::recorded)
      .def("install_plan", &Replay::install)
      .def("snapshot", &Replay::snapshot)
      .def_property_readonly("planned", &Replay::planned);
}

}  // namespace vt
