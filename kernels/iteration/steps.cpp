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

StepId Steps::step(std::uint64_t op, std::size_t births_since) noexcept { return mix(op, births_since); }

std::uint32_t Steps::find(const Trail& trail, std::int64_t expected, std::int64_t first) const noexcept {
  if (!trail.tells()) return kNone;
  const std::pair at{trail.sum(), static_cast<std::uint32_t>(std::max<std::int64_t>(expected, 0))};
  const auto after = std::lower_bound(places_.begin(), places_.end(), at);  // of those alike, the first from there on
  std::uint32_t found = kNone;
  if (after != places_.end() && after->first == trail.sum()) found = after->second;
  if (after != places_.begin()) {
    const auto [sum, before] = *std::prev(after);
    const bool nearer = found == kNone || expected - before <= found - expected;
    if (sum == trail.sum() && before >= first && nearer) found = before;
  }
  return found;
}

}  // namespace vt
