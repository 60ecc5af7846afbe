#include "replay/replay.h"

#include <algorithm>
#include <utility>

#include "iteration/operators.h"

namespace vt {

Replay::Replay(const ReplayTrace& trace, std::size_t budget_chunks, const ModelCosts& costs, std::uint64_t launch_ns)
    : launch_ns_(launch_ns) {
  read(trace);
  EngineConfig config;
  config.budget_chunks = budget_chunks;
  auto driver = std::make_unique<ModelDriver>(trace.chunk_bytes, costs);
  device_ = driver.get();
  engine_ = std::make_unique<Engine>(std::move(driver), make_ram_store(trace.chunk_bytes, Bytes{1} << 38), config);
  stream_ = engine_->streams()->lane(nullptr);
  if (!calls_.empty()) engine_->remake().use(std::make_unique<ModelRemaker>(*engine_, *device_, stream_, launch_ns_));
  live_.resize(bytes_.size());
  // What is there when an iteration begins: tensors that last, and those that an iteration leaves to the next.
  for (std::size_t t = 0; t < bytes_.size(); ++t) {
    const auto& [bytes, born, died] = trace.tensors[t];
    if (born < 0 || (died >= 0 && died < born)) allocate(t, false);
  }
  runner_.boundary(*engine_, false, Teller::somebody);
  begun_ = device_->now();
}

Replay::~Replay() {
  if (engine_->remake().on()) engine_->remake().suspend(true);
  for (Range*& range : live_) free(range, false);
  engine_->detach();
}

double Replay::iteration() {
  for (const Row& row : rows_) replay(row);
  device_->join(stream_);
  const std::uint64_t now = device_->now();
  return static_cast<double>(now - std::exchange(begun_, now)) / 1e9;
}

void Replay::read(const ReplayTrace& trace) {
  for (const ReplayTrace::Row& row : trace.rows) rows_.push_back({operator_id(row.name), row.ns});
  for (std::uint32_t i = 0; i < rows_.size(); ++i) rows_.at(trace.rows[i].last).ends.push_back(i);
  for (std::size_t t = 0; t < trace.tensors.size(); ++t) {
    const auto& [bytes, born, died] = trace.tensors[t];
    bytes_.push_back(bytes);
    if (born >= 0) rows_.at(static_cast<std::size_t>(born)).births.push_back(t);
    if (died >= 0) rows_.at(static_cast<std::size_t>(died)).deaths.push_back(t);
  }
  for (const ReplayTrace::Use& use : trace.uses) rows_.at(use.row).uses.push_back(use);
  for (const ReplayTrace::Call& call : trace.calls) add_call(trace, call);
}

// What a call that can be run again does, by what its rows do. One that writes several tensors is not run again.
void Replay::add_call(const ReplayTrace& trace, const ReplayTrace::Call& known) {
  const auto [first, last, fills] = known;
  ReplayCall call;
  call.first = first;
  call.last = last;
  std::vector<std::size_t> born;
  for (std::uint32_t i = first; i <= last; ++i) {
    const Row& row = rows_.at(i);
    call.ns += row.ns;
    for (const std::size_t tensor : row.births) {
      born.push_back(tensor);
      const std::int64_t died = trace.tensors[tensor].died;
      const bool outlives = died < static_cast<std::int64_t>(i) || died > static_cast<std::int64_t>(last);
      outlives ? call.results.push_back(tensor) : static_cast<void>(call.scratch += bytes_[tensor]);
    }
  }
  for (std::uint32_t i = first; i <= last; ++i) {
    for (const ReplayTrace::Use& use : rows_[i].uses) {
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

Range* Replay::allocate(std::size_t tensor, bool pinned) {
  free(live_[tensor], true);  // born once more and freed nowhere: the old one is replaced
  return live_[tensor] = engine_->find(engine_->allocate(bytes_[tensor], "replay", stream_, pinned, runner_.wish()));
}

void Replay::free(Range*& range, bool keep) {
  if (range != nullptr) engine_->free(reinterpret_cast<void*>(range->base), keep);
  range = nullptr;
}

void Replay::replay(const Row& row) {
  device_->spend(launch_ns_);
  engine_->tick();
  const bool sees = row.call && (runner_.sees(runner_.log().rows()) || runner_.asks());
  runner_.row(*engine_, row.op, stream_);
  while (runner_.has_due()) {
    engine_->remake().bring_back(runner_.take_due());
    runner_.go_on(*engine_);
  }
  std::vector<Use> uses, missing;
  for (const ReplayTrace::Use& use : row.uses) {
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
  engine_->streams()->used(stream_);
  engine_->streams()->pulse(stream_);
  for (const Use& use : uses) {
    engine_->streams()->used_on(stream_, *use.range);
    engine_->unpin(use);
  }
  for (const std::uint32_t ended : row.ends) runner_.log().row_ends(ended);
  if (begun_call_ != nullptr && runner_.log().rows() == begun_call_->last + 1) end();
  for (const std::size_t tensor : row.deaths) {
    if (live_[tensor] != nullptr) free(live_[tensor], runner_.died(*live_[tensor]));
  }
}

void Replay::begin(const ReplayCall& call) {
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

void Replay::end() {
  const ReplayCall& call = *std::exchange(begun_call_, nullptr);
  using Again = Recorder::CallOf::Again;
  runner_.call(call.first, step_ == nullptr ? Again::no : call.filled ? Again::fills : Again::yes);
  if (step_ == nullptr) return;
  std::vector<Range*> results;
  for (const std::size_t tensor : call.results) results.push_back(live_[tensor]);
  if (call.written) results.push_back(live_[call.sources[*call.written]]);
  engine_->remake().end(std::exchange(step_, nullptr), results);
}

}  // namespace vt
