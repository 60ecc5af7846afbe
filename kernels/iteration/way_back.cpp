#include "iteration/way_back.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace vt {

namespace {
// Where an iteration left, it may go back by this share of its rows, a layer or so. Not by more: each batch of an evaluation
// would follow the plan's forward pass, and what that sends out for the backward pass would have to come back for the next. And
// however long it does something else, it is expected to go on not much further: after an evaluation the backward pass begins
// at its first layer.
constexpr std::uint32_t kNearShare = 16;
}  // namespace

void WayBack::leave(Plan& plan, std::uint32_t row, StepId step) noexcept {
  plan_ = &plan;
  trail_ = {};
  trail_.add(step);
  expected_ = row;
  const std::int64_t near = plan.rows() / kNearShare;
  first_ = row - near;
  last_ = row + std::max<std::int64_t>(near, Trail::kLong);
}

std::uint32_t WayBack::step(StepId step) noexcept {
  if (plan_ == nullptr) return kNone;
  trail_.add(step);
  expected_ = std::min(expected_ + 1, last_);
  return plan_->steps.find(trail_, expected_, first_);
}

Missed::Missed(const Plan& plan, std::uint32_t from, std::uint32_t to) {
  if (from >= to) return;
  // By tensor, the row after the last that brings it, and that sends it away.
  std::unordered_map<std::uint32_t, std::uint32_t> came, left;
  const auto note = [&](const Plan::ByRow& parts, auto& when) {
    for (std::uint32_t row = from; row < to; ++row) {
      for (const Plan::Part& part : parts.of(row)) when[part.tensor] = row + 1;
    }
  };
  note(plan.out, left);
  note(plan.in, came);
  note(plan.drop, left);
  note(plan.make, came);
  // What is undone by another move is not begun. In one row, what leaves goes first.
  const auto pick = [&](const Plan::ByRow& parts, auto& undone, std::uint32_t grace, std::vector<Plan::Part>& into) {
    for (std::uint32_t row = from; row < to; ++row) {
      for (const Plan::Part& part : parts.of(row)) {
        if (undone[part.tensor] < row + 1 + grace) into.push_back(part);
      }
    }
  };
  pick(plan.out, came, 0, out);
  pick(plan.in, left, 1, in);
  pick(plan.drop, came, 0, drop);
}

}  // namespace vt
