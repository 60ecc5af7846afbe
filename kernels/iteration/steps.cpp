#include "iteration/steps.h"

#include <algorithm>

#include "iteration/recorder.h"

namespace vt {

Steps::Steps(std::vector<StepId> steps, std::vector<std::uint32_t> births)
    : steps_(std::move(steps)), births_(std::move(births)) {
  Trail trail;
  for (std::uint32_t row = 0; row < steps_.size(); ++row) {
    trail.add(steps_[row]);
    if (trail.tells()) places_.emplace_back(trail.sum(), row);
  }
  std::sort(places_.begin(), places_.end());
}

StepId Steps::step(std::uint64_t op, std::size_t births_since) noexcept { return Recorder::mix(op, births_since); }

std::uint32_t Steps::find(const Trail& trail, std::int64_t expected, std::int64_t first) const noexcept {
  if (!trail.tells()) return kNone;
  const auto at = [&](std::int64_t row) {  // of those alike, the first from `row` on
    return std::lower_bound(places_.begin(), places_.end(),
                            std::pair{trail.sum(), static_cast<std::uint32_t>(std::max<std::int64_t>(row, 0))});
  };
  const auto alike = [&](auto place) { return place != places_.end() && place->first == trail.sum(); };
  const auto after = at(expected);
  std::uint32_t found = alike(after) ? after->second : kNone;
  if (at(first) != after) {  // there are some between
    const std::uint32_t before = std::prev(after)->second;
    if (found == kNone || expected - before <= found - expected) found = before;
  }
  return found;
}

}  // namespace vt
