// How an iteration that left its plan finds back into it.
//
// An expert without tokens, a layer left out, augmentations in another order: some steps later the iteration does again what was
// planned. Of the places in the plan that could be it, the nearest is taken to be where it is. A place taken wrongly costs
// copies, and is left again where steps differ.
//
// Covers: watching for the place, how far on it is, what has been passed over then.
// Leaves: telling places (steps.h), what is done there (plan_runner.h), which tensor is which (binding.h).
// Thread-safety: none; recording.h guards it.
#pragma once

#include "iteration/plan.h"

namespace vt {

class WayBack {
 public:
  // `plan` was left at `row` of it, with this step.
  void leave(Plan& plan, std::uint32_t row, StepId step) noexcept;
  // The next step. Returns the row of the plan at which the iteration is; kNone while that is not known.
  std::uint32_t step(StepId step) noexcept;
  // The plan that was left; nullptr if there is no way back.
  Plan* plan() const noexcept { return plan_; }
  void forget() noexcept { plan_ = nullptr; }

 private:
  Plan* plan_ = nullptr;
  Trail trail_;
  std::int64_t expected_ = 0, first_ = 0, last_ = 0;  // rows of the plan; expected from the first to the last
};

// By how much a plan is further on than an iteration that follows it; 0 unless that left it, and is back.
struct Ahead {
  std::int64_t rows = 0, births = 0;
  Bytes allocated = 0;  // modulo 2^64

  std::uint32_t row(std::uint32_t of) const noexcept { return static_cast<std::uint32_t>(std::int64_t{of} + rows); }
  std::size_t birth(std::size_t of) const noexcept { return static_cast<std::size_t>(static_cast<std::int64_t>(of) + births); }
};

// What planned rows [from, to) would have moved by the end, had they been followed. What they recompute is left out: whoever
// needs it makes it.
struct Missed {
  Missed(const Plan& plan, std::uint32_t from, std::uint32_t to);
  std::vector<Plan::Part> out, in, drop;
};

}  // namespace vt
