// Follows plans: starts the copies each row asks for, and notices when an iteration is not the one that was planned.
//
// Covers: following a plan, deviations, boundaries.
// Leaves: which plans there are (plans.h), where iterations end that nobody tells of (rounds.h), which are worth a plan
// (sightings.h), which tensor of a plan is which range (binding.h), where an iteration finds back (way_back.h), moving chunks
// (Engine::move_by_plan), making plans (lgm/, called from vtensor/planning/maker.py).
//
// A plan knows its steps (steps.h): one comparison a row tells whether the iteration still is the planned one. If not, another
// plan in which all before was the same takes over (another model, say); if there is none, the reactive policy does, until
// the iteration is where the plan it left knows it again, or ends. At the next boundary the plan that was completed last is
// tried again (I4).
// Hashes do not tell sizes: what allocates somewhat less or more follows the plan of the size that is nearest, and another plan
// is made where none is near. Lengths that differ with every batch need a plan for every fifth of their range, not one each.
// Thread-safety: none; recording.h guards it.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "iteration/binding.h"
#include "iteration/earlier.h"
#include "iteration/plans.h"
#include "iteration/recorder.h"
#include "iteration/rounds.h"
#include "iteration/sightings.h"
#include "iteration/timing.h"
#include "iteration/way_back.h"

namespace vt {

struct PlanCounters {
  std::uint64_t iterations = 0;          // boundaries so far
  std::uint64_t planned_iterations = 0;  // of them, that followed a plan from end to end
  std::uint64_t deviations = 0;          // of them, that left one
  std::uint32_t left_row = kNone;        // where the last of those did; kNone if it ended early
  OpId left_op = 0;                      // and with which operation
  std::uint64_t rejoined = 0;            // times a plan that had been left was followed again in the same iteration
  std::uint64_t operations = 0;          // rows of iterations that began with a plan
  std::uint64_t planned_operations = 0;  // of them, that followed it
  std::uint64_t plans = 0;               // installed
};

// What a boundary found out about the iteration it ended.
enum class Finding : std::uint8_t {
  nothing,  // it followed a plan, or has not been seen before
  telling,  // worth analysing: it was like an earlier one, and there is no plan for it yet; or no two are ever alike; or it
            // followed a plan, and was not what that was made of
};

// Who says that an iteration ends: a hook (an optimizer has stepped), or nobody, but a loop comes round.
enum class Teller : std::uint8_t { somebody, nobody };

class PlanRunner {
 public:
  // Of another session than the one `before`.
  explicit PlanRunner(const PlanRunner* before = nullptr) : number_(before != nullptr ? before->number_ : 0) {}
  PlanRunner(const PlanRunner&) = delete;
  PlanRunner& operator=(const PlanRunner&) = delete;

  // The calling thread ends an iteration of `engine` and begins the next, of which an ordered device keeps the moments at which
  // rows begin if `timing`; else it does where a plan may be made of it.
  Finding boundary(Engine& engine, bool timing, Teller teller);
  // Something is away, and nobody told yet, or not for very long: what happens from now on is logged, to find out where
  // iterations end.
  void watch(Engine& engine);
  Rounds& rounds() noexcept { return rounds_; }
  Plans& plans() noexcept { return plans_; }
  // What the thread that runs iterations does (torch_observer.cpp, managed.cpp).
  bool recording() const noexcept { return log_ != Log::none; }
  // Of the iteration that is under way.
  Recorder& log() noexcept { return recorder_; }
  // `stream`: what the row is asked of, on an ordered device.
  std::uint32_t row(Engine& engine, OpId op, Lane stream = Lane::none);
  // Whether an operation that begins with this row will be run again.
  bool sees(std::uint32_t row) const noexcept {
    return active_ != nullptr && now_.ahead.row(row) < active_->sees.size() && active_->sees[now_.ahead.row(row)] != 0;
  }
  // Whether a plan may be made of the iteration, which should know what could be run again.
  bool asks() const noexcept { return log_ != Log::watching && (!followed_ || asks_ || looks_); }
  // A call that began with this row ends. Returns what it took when an iteration was timed last, if that was one like this; else
  // 0.
  std::uint64_t call(std::uint32_t first, Recorder::CallOf::Again again);
  // What must be recomputed before the row goes on; then go_on() must be called, and this again.
  std::vector<PlannedMove> take_due() { return std::exchange(due_, {}); }
  bool has_due() const noexcept { return !due_.empty(); }
  void go_on(Engine& engine);
  void use(Range& range, const Use& use) {
    if (recorder_.use(range, use) && rounds_.found_after_miss(recorder_) && log_ == Log::iteration) log_ = Log::several;
  }
  // Where a plan wants what is allocated next; it points into the plan.
  Wish wish() const;
  void born(Range& range);
  // Whether the addresses should stay mapped.
  bool died(Range& range) noexcept;

  // The iteration that the last boundary ended.
  const Recorder& last() const noexcept { return finished_; }
  PlanCounters counters() const noexcept { return counters_; }

 private:
  // What the log is of.
  enum class Log : std::uint8_t {
    none,
    iteration,  // from its beginning
    several,    // the same; but rounds are in it, unless somebody tells otherwise
    watching,   // it began in the midst of one: none is to be planned by it
  };
  // How far an iteration is, and how far from its plan.
  struct Progress {
    Ahead ahead;
    std::size_t births_before = 0;      // the newest row
    bool unlike = false;                // something allocated has another size than in the active plan
    std::size_t look_at = 1;            // allocations after which a plan that is nearer is looked for
    double farthest = 0;                // misfit of the nearest plan, the largest so far
    std::uint32_t next = 0, until = 0;  // planned rows that are yet to be begun: [next, until)
  };

  bool deserves_a_plan(Engine& engine, bool planned, bool was_timed);
  void begin_next(Engine& engine, bool planned);
  void begin_log(Engine& engine);
  Finding look_again(Engine& engine, bool looked);
  bool change_plan(Engine& engine, std::uint32_t row, StepId step);
  void activate(Engine& engine, Plan& plan);
  void deviate(Engine& engine, std::uint32_t row = kNone);
  // Moves chunks; that is not computing.
  template <typename Work>
  void apart(Work work) {
    const auto begun = Clock::now();
    work();
    recorder_.stall(ns_since(begun));
  }
  bool rejoin(Engine& engine, std::uint32_t row, StepId step);
  double misfit(const Plan& plan) const noexcept;

  Recorder recorder_;
  Recorder finished_;
  Earlier earlier_;                           // than that one
  Log log_ = Log::none;
  Rounds rounds_;
  Timing timing_;
  bool followed_ = false;                     // the whole iteration so far followed a plan
  bool asks_ = false;                         // one that no plan was near came, and it was not noted what could be run again
  bool looks_ = false;                        // it follows a plan, and another may be made of it (second_look.h)
  Plans plans_;
  Plan* active_ = nullptr;                    // the one that is followed now
  Progress now_;
  WayBack way_back_;                          // from where it was left
  std::uint64_t planned_before_ = 0;          // rows, when it began
  std::uint32_t number_ = 0;                  // of the iteration; never one twice, as tags outlive sessions
  Binding binding_{recorder_};
  std::vector<PlannedMove> out_now_, in_now_, drop_now_, due_;
  Sightings sightings_;                       // of iterations without a plan
  PlanCounters counters_;
};

}  // namespace vt
