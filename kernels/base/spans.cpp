#include "base/spans.h"

#include <utility>

namespace vt {

namespace {
std::uint64_t nanoseconds(Clock::time_point at) {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(at.time_since_epoch()).count());
}
}  // namespace

void Spans::keep() {
  const std::lock_guard held(mutex_);
  log_.clear();
  kept_.store(true, std::memory_order_relaxed);
}

std::vector<Span> Spans::take() {
  const std::lock_guard held(mutex_);
  kept_.store(false, std::memory_order_relaxed);
  return std::exchange(log_, {});
}

void Spans::add(Doing what, Clock::time_point begun, Bytes bytes) {
  const std::lock_guard held(mutex_);
  if (log_.size() < kMost) log_.push_back({what, nanoseconds(begun), nanoseconds(Clock::now()), bytes});
}

Spans& spans() {
  static Spans* const all = new Spans;  // for good: threads of lanes may end after everything else
  return *all;
}

}  // namespace vt
