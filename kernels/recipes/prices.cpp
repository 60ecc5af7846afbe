// What making something again takes, and what is kept so that it goes on taking no more (recipes.h).
#include <algorithm>
#include <array>

#include "recipes/recipes.h"

namespace vt {

// What was cheap to make when it left is not, once what it was made of is gone: in a loop of w = w - rate * g each step's weights
// would be made of all steps before.
bool Recipes::makes_dear(const Range& range) const {
  if (priced_ == 0) return false;
  const Content* content = find(range);
  const auto made_of_it = dependents(range);
  return std::any_of(made_of_it.begin(), made_of_it.end(), [&](const Range* dropped) {
    const std::optional<std::uint64_t> worth_ns = find(*dropped)->worth_ns;
    if (!worth_ns) return false;
    const auto ns = making_ns(*dropped, content);
    return !ns || *ns > *worth_ns;
  });
}

std::optional<std::uint64_t> Recipes::making_ns(const Range& range) const { return making_ns(range, nullptr); }

std::optional<std::uint64_t> Recipes::making_ns(const Range& range, const Content* without) const {
  std::array<const Step*, kMostPriced> steps;
  std::size_t count = 0;
  const auto visit = [&](const Content& content) {
    const Step* step = content.step.get();
    const auto end = steps.begin() + static_cast<std::ptrdiff_t>(count);
    if (std::find(steps.begin(), end, step) != end) return true;
    if (count == steps.size()) return false;
    steps[count++] = step;
    return true;
  };
  std::uint64_t ns = 0;
  visit(*find(range));
  for (std::size_t i = 0; i < count; ++i) {
    ns += steps[i]->ns;
    for (const auto& source : steps[i]->sources) {
      const bool to_make = source->holder == nullptr || source->dropped || source.get() == without;
      if (to_make && !visit(*source)) return std::nullopt;
    }
  }
  return ns;
}

}  // namespace vt
