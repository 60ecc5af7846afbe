// The plans there are, by what their iteration does, and how large it is.
//
// Covers: which of them is tried next, which replaces which; those that were handed over, or forgotten, since the last boundary.
// Leaves: what a plan says (plan.h), following one (plan_runner.h), making them (lgm/).
// Thread-safety: none; recording.h guards it.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "iteration/plan.h"
#include "iteration/sightings.h"

namespace vt {

class Plans {
 public:
  static constexpr std::size_t kMost = 16;

  // A plan to be used from the next boundary on.
  void install(std::unique_ptr<Plan> plan);
  // All plans are forgotten at the next boundary (the budget changed).
  void forget() noexcept;

  bool none() const noexcept { return plans_.empty(); }
  // None, and none was handed over.
  bool none_to_come() const noexcept { return plans_.empty() && incoming_.empty(); }
  bool has_room() const noexcept { return plans_.size() + incoming_.size() < kMost; }
  // The one to be tried first. Pre: there is one.
  Plan& first() const noexcept { return *plans_.back(); }
  // An iteration followed it from end to end: it is tried first.
  void completed(const Plan& plan);
  const std::vector<std::unique_ptr<Plan>>& all() const noexcept { return plans_; }
  // Whether it is so of any of them, those handed over included.
  template <typename Fits>
  bool any(Fits fits) const {
    const auto of = [&](const auto& plan) { return fits(*plan); };
    return std::any_of(plans_.begin(), plans_.end(), of) || std::any_of(incoming_.begin(), incoming_.end(), of);
  }

  // A boundary: whether they are forgotten now.
  bool forgets() noexcept;
  // And what was handed over is there from now on. Returns how many.
  std::size_t take_in(Sightings& sightings);

 private:
  std::vector<std::unique_ptr<Plan>> plans_;  // the one completed last at the end
  std::vector<std::unique_ptr<Plan>> incoming_;
  bool forget_ = false;
};

}  // namespace vt
