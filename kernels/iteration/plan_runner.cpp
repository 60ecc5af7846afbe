#include "iteration/plan_runner.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace vt {

namespace {
constexpr std::size_t kMostSeen = 64;  // shapes of iterations remembered without a plan
}  // namespace

Finding PlanRunner::boundary(Engine& engine) {
  recorder_.end();
  Streams* streams = engine.streams();  // where there are some, they time rows
  const bool completed = active_ != nullptr && recorder_.rows() == active_->rows() && recorder_.hash() == active_->final_hash;
  const bool planned = recording_ && !recorder_.full() && completed && followed_;
  bool was_timed = streams == nullptr;
  if (timing_ > 0) {
    was_timed = recorder_.take_times(streams->row_times());
    if (was_timed && engine.remake().weighs()) usual_ = recorder_;
    timing_ = planned ? timing_ - 1 : 0;  // one that has no plan was meant, which may take turns with those that have one
    if (timing_ > 0) streams->start_timing();
  }
  if (streams != nullptr && timing_ == 0 && engine.remake().weighs() && usual_.hash() != recorder_.hash()) {
    timing_ = 1;  // the next may be like this one
    streams->start_timing();
  }
  ++counters_.iterations;
  Finding finding = Finding::nothing;
  if (recording_ && !recorder_.full()) {
    if (planned) {
      ++counters_.planned;
      const auto mine = std::find_if(plans_.begin(), plans_.end(), [&](const auto& p) { return p.get() == active_; });
      std::rotate(mine, mine + 1, plans_.end());
    } else {
      if (active_ != nullptr && !completed) deviate(engine);
      if (!has_plan(recorder_.hash(), recorder_.rows())) {
        if (streams == nullptr) recorder_.take_quicker_times(finished_);  // there only one of them was timed
        auto seen = std::find_if(seen_.begin(), seen_.end(), [&](const Seen& s) { return s.hash == recorder_.hash(); });
        if (seen == seen_.end()) {
          if (seen_.size() >= kMostSeen) seen_.erase(seen_.begin());
          seen_.push_back({recorder_.hash(), 1});
        } else if (!was_timed) {
          timing_ = kMostPlans;  // the next of its kind will be worth analysing
          streams->start_timing();
        } else if (std::has_single_bit(++seen->times)) {
          finding = Finding::repeated;  // again now and then: the analysis may have been busy with another shape, or have failed
        }
      }
    }
    std::swap(recorder_, finished_);
  }
  if (forget_) {
    plans_.clear();
    seen_.clear();
    active_ = nullptr;
    forget_ = false;
  }
  for (auto& plan : incoming_) {
    if (plans_.size() >= kMostPlans) plans_.erase(plans_.begin());
    plans_.push_back(std::move(plan));
    ++counters_.installed;
    active_ = nullptr;
  }
  incoming_.clear();
  if (active_ != nullptr && plans_.back().get() != active_) active_ = nullptr;
  const bool went_on = active_ != nullptr && followed_ && active_->settled;
  engine.living([&](std::span<Range* const> live) {
    recorder_.begin(++number_, live);
    living_.clear();
    for (Range* range : live) living_.push_back({{range, range->serial}, range->bytes});
  });
  births_.clear();
  next_ = until_ = 0;
  due_.clear();
  recording_ = true;
  followed_ = !plans_.empty();
  if (went_on) bind_again();
  if (followed_ && !went_on) {
    activate(*plans_.back());
    fill(active_->away, 0, active_->away.size(), out_now_);
    engine.move_by_plan(out_now_, {});  // as the plan expects to find it
  }
  return finding;
}

void PlanRunner::install(std::unique_ptr<Plan> plan) { incoming_.push_back(std::move(plan)); }

void PlanRunner::forget_plans() {
  incoming_.clear();
  forget_ = true;
}

void PlanRunner::reset() {
  recorder_ = Recorder{};
  finished_ = Recorder{};
  usual_ = Recorder{};
  recording_ = followed_ = false;
  timing_ = 0;
  plans_.clear();
  active_ = nullptr;
  bound_.clear();
  planned_.clear();
  births_.clear();
  living_.clear();
  seen_.clear();
  counters_ = {};
  incoming_.clear();
  forget_ = false;
}

std::uint64_t PlanRunner::call(std::uint32_t first, Recorder::CallOf::Again again) {
  recorder_.call(first, again);
  const std::uint32_t last = recorder_.rows() - 1;
  if (first > last || last >= usual_.rows() || last >= recorder_.rows()) return 0;
  const auto& rows = usual_.all_rows();
  if (rows[first].op != recorder_.all_rows()[first].op) return 0;
  return (last + 1 < usual_.rows() ? rows[last + 1].begin_ns : usual_.end_ns()) - rows[first].begin_ns;
}

bool PlanRunner::has_plan(std::uint64_t hash, std::uint32_t rows) const noexcept {
  const auto fits = [&](const auto& plan) { return plan->rows() == rows && plan->final_hash == hash; };
  return std::any_of(plans_.begin(), plans_.end(), fits) || std::any_of(incoming_.begin(), incoming_.end(), fits);
}

std::uint32_t PlanRunner::row(Engine& engine, OpId op, Ticket::Lane stream) {
  if (recorder_.full()) {  // no training iteration: an evaluation without end, perhaps
    recording_ = false;
    if (active_ != nullptr) deviate(engine);
    return kNone;
  }
  if (timing_ > 0) engine.streams()->row_begins(stream);
  const std::uint32_t row = recorder_.row(op);
  if (!followed_) return row;
  if (row >= active_->rows() || active_->hash[row] != recorder_.hash()) {
    if (!change_plan(engine, row)) return row;
    next_ = active_->at.empty() ? row : active_->at[row];
  }
  const Plan& plan = *active_;
  until_ = (plan.at.empty() ? row : plan.at[row]) + 1;
  const bool moves_begin = plan.out_at[next_] != plan.out_at[until_] || plan.in_at[next_] != plan.in_at[until_];
  const bool makes = !plan.at.empty() && (plan.drop_at[next_] != plan.drop_at[until_] || plan.make_at[next_] != plan.make_at[until_]);
  if (moves_begin || makes || engine.moves_wait()) {
    const auto begun = std::chrono::steady_clock::now();
    go_on(engine);
    const auto passed = std::chrono::steady_clock::now() - begun;
    stall(static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(passed).count()));
  } else {
    next_ = until_;
  }
  return row;
}

// Up to the first planned row that makes something again: what comes after it waits until it is made.
void PlanRunner::go_on(Engine& engine) {
  if (!followed_) return;
  const Plan& plan = *active_;
  while (next_ < until_) {
    const std::uint32_t now = next_++;
    fill(plan.out, plan.out_at[now], plan.out_at[now + 1], out_now_);
    fill(plan.in, plan.in_at[now], plan.in_at[now + 1], in_now_);
    if (!out_now_.empty() || !in_now_.empty() || engine.moves_wait()) engine.move_by_plan(out_now_, in_now_);
    if (plan.at.empty()) continue;
    fill(plan.drop, plan.drop_at[now], plan.drop_at[now + 1], drop_now_);
    if (!drop_now_.empty()) engine.remake().drop(drop_now_);
    fill(plan.make, plan.make_at[now], plan.make_at[now + 1], due_);
    if (!due_.empty()) return;
  }
}

// The iteration is not the planned one. True if another plan's prefix is the same.
bool PlanRunner::change_plan(Engine& engine, std::uint32_t row) {
  const auto fits = std::find_if(plans_.begin(), plans_.end(), [&](const auto& plan) {
    return row < plan->rows() && plan->hash[row] == recorder_.hash();
  });
  if (fits == plans_.end()) {
    deviate(engine, row);
    return false;
  }
  activate(**fits);
  for (std::size_t k = 0; k < births_.size() && k < active_->births.size(); ++k) {
    bind(active_->births[k], recorder_.births()[k], births_[k]);
  }
  return true;
}

void PlanRunner::deviate(Engine& engine, std::uint32_t row) {
  ++counters_.deviations;
  counters_.left_row = row;
  if (row != kNone) counters_.left_op = recorder_.all_rows()[row].op;
  followed_ = false;
  active_ = nullptr;
  engine.forget_arrivals();
}

// Which tensors the lasting ones of a plan from a file are: the same program makes the same ones in the same order. What the iteration
// before made is none of them. Nothing is known of what the first one made (gradients, states of the optimizer), so that what is
// found after it is a guess.
void PlanRunner::recognize(Plan& plan) const {
  plan.settled = counters_.iterations > 1;
  std::size_t begin = 0;
  for (std::uint32_t t = 0; t < plan.lasting.size(); ++t) {
    if (plan.lasting[t] == 0) continue;
    std::size_t i = begin;
    while (i < living_.size() && (recorder_.tensors()[i].previous != kNone || living_[i].bytes != plan.bytes[t])) ++i;
    const bool found = i < living_.size();
    plan.serial[t] = found ? living_[i].bound.serial : 0;
    if (found) begin = i + 1;
    plan.settled = plan.settled && found;
  }
}

void PlanRunner::activate(Plan& plan) {
  active_ = &plan;
  if (!plan.settled) recognize(plan);
  bound_.assign(plan.bytes.size(), {});
  planned_.assign(recorder_.tensors().size(), kNone);
  // Tensors that last, and tensors of the iteration before that outlive it, each by what is known of them.
  const auto by_serial = living_by_serial();
  std::unordered_map<std::uint32_t, std::uint32_t> by_birth;
  for (std::uint32_t i = 0; i < living_.size(); ++i) {
    const std::uint32_t previous = recorder_.tensors()[i].previous;
    if (previous != kNone) by_birth.emplace(previous, i);
  }
  for (std::uint32_t t = 0; t < bound_.size(); ++t) {
    if (plan.lasting[t] != 0) {
      const auto found = by_serial.find(plan.serial[t]);
      if (found != by_serial.end()) bind(t, found->second, living_[found->second].bound);
    } else if (plan.previous[t] != kNone) {
      const auto found = by_birth.find(plan.previous[t]);
      if (found != by_birth.end() && living_[found->second].bytes == plan.bytes[t]) {
        bind(t, found->second, living_[found->second].bound);
      }
    }
  }
}

void PlanRunner::bind(std::uint32_t tensor, std::uint32_t recorded, const Bound& bound) {
  bound_[tensor] = bound;
  if (recorded >= planned_.size()) planned_.resize(recorded + 1, kNone);
  planned_[recorded] = tensor;
}

// The plan goes on into the next iteration, where the recorder numbers tensors anew.
void PlanRunner::bind_again() {
  planned_.assign(recorder_.tensors().size(), kNone);
  const auto by_serial = living_by_serial();
  for (std::uint32_t t = 0; t < bound_.size(); ++t) {
    if (bound_[t].range == nullptr) continue;
    const auto found = by_serial.find(bound_[t].serial);
    if (found != by_serial.end()) planned_[found->second] = t;
  }
}

std::unordered_map<std::uint64_t, std::uint32_t> PlanRunner::living_by_serial() const {
  std::unordered_map<std::uint64_t, std::uint32_t> index;
  for (std::uint32_t i = 0; i < living_.size(); ++i) index.emplace(living_[i].bound.serial, i);
  return index;
}

void PlanRunner::fill(const std::vector<Plan::Part>& parts, std::size_t begin, std::size_t end,
                      std::vector<PlannedMove>& moves) const {
  moves.clear();
  for (std::size_t k = begin; k < end; ++k) {
    const Bound& bound = bound_[parts[k].tensor];
    if (bound.range != nullptr) moves.push_back({bound.range, bound.serial, parts[k].first, parts[k].last});
  }
}

void PlanRunner::born(Range& range) {
  const std::size_t k = births_.size();
  recorder_.born(range);
  births_.push_back({&range, range.serial});
  if (followed_ && k < active_->births.size()) bind(active_->births[k], recorder_.births().back(), births_.back());
}

bool PlanRunner::died(Range& range) noexcept {
  recorder_.died(range);
  const std::uint32_t recorded = recorder_.tensor_of(range);
  if (!followed_ || recorded >= planned_.size()) return true;
  const std::uint32_t tensor = planned_[recorded];
  if (tensor == kNone || bound_[tensor].serial != range.serial) return true;
  bound_[tensor] = {};
  return active_->keep[tensor] != 0;
}

}  // namespace vt
