#include "iteration/plans.h"

#include <utility>

namespace vt {

void Plans::install(std::unique_ptr<Plan> plan) {
  plan->allocated = {0};
  for (const std::uint32_t tensor : plan->births) plan->allocated.push_back(plan->allocated.back() + plan->tensors[tensor].bytes);
  incoming_.push_back(std::move(plan));
}

void Plans::forget() noexcept {
  incoming_.clear();
  forget_ = true;
}

void Plans::completed(const Plan& plan) {
  const auto mine = std::find_if(plans_.begin(), plans_.end(), [&](const auto& p) { return p.get() == &plan; });
  std::rotate(mine, mine + 1, plans_.end());
}

bool Plans::forgets() noexcept {
  if (forget_) plans_.clear();
  return std::exchange(forget_, false);
}

std::size_t Plans::take_in(Sightings& sightings) {
  const std::size_t count = incoming_.size();
  for (auto& plan : incoming_) {
    std::erase_if(plans_, [&](const auto& old) {  // a better one of the same iteration
      return old->final_hash == plan->final_hash && old->allocated.back() == plan->allocated.back();
    });
    if (plans_.size() >= kMost) plans_.erase(plans_.begin());
    // While there are places, the next that is of another size is worth analysing.
    if (plans_.size() + 1 < kMost) sightings.planned(plan->final_hash);
    plans_.push_back(std::move(plan));
  }
  incoming_.clear();
  return count;
}

}  // namespace vt
