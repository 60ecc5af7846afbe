#include "iteration/plan_runner.h"

#include <algorithm>
#include <utility>

namespace vt {

namespace {
constexpr double kFar = 0.5;  // as far as a plan may be off and be followed
constexpr std::size_t kMostWatched = std::size_t{1} << 17;  // rows; three rounds are less
}  // namespace

// How far a plan is from what was allocated so far: 0 is as planned. What allocates less than planned makes some moves too many;
// what allocates more lacks some, which is worse.
double PlanRunner::misfit(const Plan& plan) const noexcept {
  const Ahead ahead = &plan == active_ ? now_.ahead : Ahead{};
  const std::size_t birth = std::min(ahead.birth(recorder_.births().size()), plan.births.size());
  return farness(recorder_.allocated() + ahead.allocated, plan.allocated[birth]);
}

void PlanRunner::watch(Engine& engine) {
  if (way_back_.plan() != nullptr) engine.forget_arrivals();
  way_back_.forget();
  begin_log(engine);
  rounds_.begin();
  log_ = Log::watching;
  followed_ = false;
}

Finding PlanRunner::boundary(Engine& engine, bool timing, Teller teller) {
  recorder_.end();
  const std::uint64_t planned_rows = counters_.planned_operations - std::exchange(planned_before_, counters_.planned_operations);
  const bool somebody = teller == Teller::somebody;
  if (log_ == Log::iteration && !somebody) rounds_.judge(2 * planned_rows > recorder_.rows(), counters_.plans);
  rounds_.ended(recorder_, somebody, log_ == Log::iteration || log_ == Log::several);
  if (log_ == Log::watching || (log_ == Log::several && !somebody)) {  // it is none
    if (active_ != nullptr) deviate(engine);
    log_ = Log::none;
    ++number_;  // what was made in it is not from the iteration before
  }
  const bool is_one = log_ != Log::none && !recorder_.full();
  const bool completed = active_ != nullptr && recorder_.rows() == active_->rows() && recorder_.hash() == active_->final_hash;
  const bool planned = is_one && completed && followed_;
  const bool was_timed = timing_.ends(engine, recorder_, planned, timing);
  ++counters_.iterations;
  Finding finding = Finding::nothing;
  if (is_one) {
    const bool looked = std::exchange(looks_, false);
    if (planned) {
      finding = look_again(engine, looked && was_timed);
    } else if (active_ != nullptr && !completed) {
      // One that came back and reached the plan's end goes on as planned.
      const bool came_back = !followed_ && now_.ahead.row(recorder_.rows()) == active_->rows();
      if (!came_back) deviate(engine);
    }
    const bool deserves = deserves_a_plan(engine, planned, was_timed);
    if (deserves) finding = Finding::telling;
    std::swap(recorder_, finished_);
    if (engine.streams() == nullptr && !timing && plans_.none_to_come()) {
      earlier_.keep(recorder_);
      if (deserves) earlier_.prefer_largest(finished_);
    }
  }
  begin_next(engine, planned);
  return finding;
}

// Of an iteration that ended: no plan was near it, and it is worth one. It may first have to come once more, to be timed, or for
// what can be run again to be noted. Where all places are taken a plan is only made of what no plan could be followed in.
bool PlanRunner::deserves_a_plan(Engine& engine, bool planned, bool was_timed) {
  const bool has_one = plans_.any([&](const Plan& plan) {
    return plan.rows() == recorder_.rows() && plan.final_hash == recorder_.hash() &&
           std::max(misfit(plan), now_.farthest) <= kNear;
  });
  if (has_one || (planned && !plans_.has_room())) return false;
  if (!plans_.none() && !asks_) {
    asks_ = true;
    return false;
  }
  Streams* const streams = engine.streams();  // where there are some, they time rows
  if (streams == nullptr) recorder_.take_quicker_times(finished_);  // there only one of them was timed
  const Sightings::Worth worth = sightings_.look(recorder_.hash(), was_timed, plans_.none_to_come());
  if (worth == Sightings::Worth::timing) timing_.begin(*streams, Plans::kMost);
  if (worth != Sightings::Worth::analysing) return false;
  asks_ = false;
  return true;
}

// The next iteration begins, with the plan that was completed last, if there is any. `planned`: so was the one that ended.
void PlanRunner::begin_next(Engine& engine, bool planned) {
  engine.remake().begin_iteration();
  if (way_back_.plan() != nullptr) engine.forget_arrivals();
  way_back_.forget();
  if (plans_.forgets()) {
    sightings_.forget();
    earlier_.forget();
    active_ = nullptr;
    if (engine.seats() != nullptr) engine.seats()->end();
  }
  if (const std::size_t installed = plans_.take_in(sightings_); installed > 0) {
    counters_.plans += installed;
    active_ = nullptr;
  }
  if (active_ != nullptr && (&plans_.first() != active_ || !followed_)) active_ = nullptr;
  const bool went_on = active_ != nullptr && active_->settled;
  begin_log(engine);
  followed_ = !plans_.none();
  if (went_on) binding_.go_on();
  if (followed_ && !went_on) {
    activate(engine, plans_.first());
    binding_.fill(*active_, active_->away, out_now_);
    engine.move_by_plan(out_now_, {});  // as the plan expects to find it
    active_->seating.send_home(engine, binding_.present(), planned);
  }
}

void PlanRunner::begin_log(Engine& engine) {
  engine.living([&](std::span<Range* const> live) {
    recorder_.begin(++number_, live);
    binding_.begin(live);
  });
  now_ = {};
  due_.clear();
  log_ = Log::iteration;
}

// After an iteration that followed a plan, and was or was not looked at.
Finding PlanRunner::look_again(Engine& engine, bool looked) {
  ++counters_.planned_iterations;
  plans_.completed(*active_);
  Streams* const streams = engine.streams();
  if (streams == nullptr) return Finding::nothing;
  SecondLook& look = active_->second_look;
  const bool found = looked && look.finds(recorder_.whole().took_ns);
  looks_ = look.is_due();
  if (looks_) timing_.begin(*streams, 1, true);
  return found ? Finding::telling : Finding::nothing;
}

std::uint64_t PlanRunner::call(std::uint32_t first, Recorder::CallOf::Again again) {
  recorder_.call(first, again);
  return timing_.took(recorder_, first);
}

std::uint32_t PlanRunner::row(Engine& engine, OpId op, Lane stream) {
  if (recorder_.full() || (log_ == Log::watching && recorder_.rows() >= kMostWatched)) {
    // No iteration: an evaluation without end, perhaps.
    if (active_ != nullptr) deviate(engine);
    watch(engine);
  }
  if (log_ != Log::watching) timing_.row(engine, stream);
  const StepId step = Steps::step(op, recorder_.births().size() - std::exchange(now_.births_before, recorder_.births().size()));
  const std::uint32_t row = recorder_.row(op);
  counters_.operations += !plans_.none() && log_ != Log::watching;
  if (active_ == nullptr && !rejoin(engine, row, step)) return row;
  const bool looks = now_.unlike && recorder_.births().size() >= now_.look_at;
  if (looks || !active_->steps.is(now_.ahead.row(row), step)) {
    now_.look_at = 2 * recorder_.births().size() + 1;  // by then as much again was allocated: sizes may tell more
    if (!change_plan(engine, row, step)) return row;
  }
  const Plan& plan = *active_;
  const std::uint32_t place = now_.ahead.row(row);
  ++counters_.planned_operations;
  now_.until = (plan.at.empty() ? place : plan.at[place]) + 1;
  if (plan.acts(now_.next, now_.until) || engine.moves_wait()) {
    apart([&] { go_on(engine); });
  } else {
    now_.next = now_.until;
  }
  return row;
}

// Up to the first planned row that makes something again: what comes after it waits until it is made.
void PlanRunner::go_on(Engine& engine) {
  if (active_ == nullptr) return;
  const Plan& plan = *active_;
  while (now_.next < now_.until) {
    const std::uint32_t now = now_.next++;
    binding_.fill(plan, plan.out.of(now), out_now_);
    binding_.fill(plan, plan.in.of(now), in_now_);
    if (!out_now_.empty() || !in_now_.empty() || engine.moves_wait()) engine.move_by_plan(out_now_, in_now_);
    binding_.fill(plan, plan.drop.of(now), drop_now_);
    if (!drop_now_.empty()) engine.remake().drop(drop_now_);
    binding_.fill(plan, plan.make.of(now), due_);
    if (!due_.empty()) return;
  }
}

// The iteration is not the planned one, or of another size. True if the plan still is the one, or another in which all before was
// the same, and is near.
bool PlanRunner::change_plan(Engine& engine, std::uint32_t row, StepId step) {
  const bool stays = active_->steps.is(now_.ahead.row(row), step);
  Plan* best = stays ? active_ : nullptr;
  for (const auto& plan : plans_.all()) {
    const bool fits = row < plan->rows() && plan->hash[row] == recorder_.hash();
    if (fits && (best == nullptr || misfit(*plan) < misfit(*best))) best = plan.get();
  }
  if (best != nullptr) now_.farthest = std::max(now_.farthest, misfit(*best));
  if (best == nullptr || misfit(*best) > kFar) {
    if (!stays) way_back_.leave(*active_, now_.ahead.row(row), step);
    deviate(engine, row);
    return false;
  }
  if (best == active_) return true;
  activate(engine, *best);
  now_.next = best->begin_of(row);
  return true;
}

// The iteration has left the plan. True if it is where the plan knows it again.
bool PlanRunner::rejoin(Engine& engine, std::uint32_t row, StepId step) {
  const std::uint32_t place = way_back_.step(step);
  if (place == kNone) return false;
  active_ = way_back_.plan();
  way_back_.forget();
  ++counters_.rejoined;
  const std::uint32_t births = active_->steps.births_before(place);
  now_.ahead = {std::int64_t{place} - row, births - static_cast<std::int64_t>(recorder_.births().size()),
            active_->allocated[births] - recorder_.allocated()};
  binding_.rejoin(*active_, now_.ahead.births, row + 1 - static_cast<std::uint32_t>(Trail::kLong));
  if (engine.seats() != nullptr) active_->seating.begin(*engine.seats(), binding_.present());
  const std::uint32_t planned = active_->begin_of(place);
  const Missed missed(*active_, now_.next, planned);
  now_.next = planned;
  apart([&] {
    binding_.fill(*active_, missed.out, out_now_);
    binding_.fill(*active_, missed.in, in_now_);
    if (!out_now_.empty() || !in_now_.empty()) engine.move_by_plan(out_now_, in_now_);
    binding_.fill(*active_, missed.drop, drop_now_);
    if (!drop_now_.empty()) engine.remake().drop(drop_now_);
  });
  return true;
}

void PlanRunner::deviate(Engine& engine, std::uint32_t row) {
  if (followed_) {
    ++counters_.deviations;
    counters_.left_row = row;
    if (row != kNone) counters_.left_op = recorder_.all_rows()[row].op;
  }
  followed_ = false;
  active_ = nullptr;
  binding_.leave();
  // What was on its way when the plan was left is wanted still if the iteration comes back.
  if (way_back_.plan() == nullptr) engine.forget_arrivals();
  if (engine.seats() != nullptr) engine.seats()->pause();
}

void PlanRunner::activate(Engine& engine, Plan& plan) {
  active_ = &plan;
  now_.ahead = {};
  if (!plan.settled) plan.settled = binding_.recognize(plan) && counters_.iterations > 1;
  binding_.bind(plan);
  if (engine.seats() != nullptr) plan.seating.begin(*engine.seats(), binding_.present());
}

Wish PlanRunner::wish() const {
  if (active_ == nullptr || active_->seating.none()) return {};
  const std::size_t nth = now_.ahead.birth(recorder_.births().size());
  return nth < active_->births.size() ? active_->seating.wish(active_->births[nth]) : Wish{};
}

void PlanRunner::born(Range& range) {
  recorder_.born(range);
  const std::uint32_t tensor = binding_.born(range, active_);
  if (tensor != kNone) active_->seating.born(tensor, range);
  now_.unlike = now_.unlike || (tensor != kNone && active_->tensors[tensor].bytes != range.bytes);
}

bool PlanRunner::died(Range& range) noexcept {
  recorder_.died(range);
  const std::uint32_t tensor = active_ != nullptr ? binding_.died(range) : kNone;
  return tensor == kNone || active_->tensors[tensor].keep;
}

}  // namespace vt
