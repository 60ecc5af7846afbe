#include "engine/streams.h"

#include <algorithm>

namespace vt {

Lane Streams::lane(void* native, bool foreign) {
  Lock lock(mutex_);
  return closed_ ? Lane::none : order_.adopt(native, foreign);
}

void Streams::pulse(Lane stream) {
  if ((ground_.pressed.load(std::memory_order_relaxed) || order_.is_foreign(stream)) && !closed_.load()) order_.pulse(stream);
}

void Streams::come_after(Lane later, Ticket earlier) {
  Lock lock(mutex_);
  order_.after(later, earlier);
}

void Streams::come_after(Lane later, const Fence& fence) {
  Lock lock(mutex_);
  order_.after(later, fence);
}

void Streams::used_on(Lane stream, Range& range) noexcept {
  if (stream == Lane::none || fences_.used_on(stream, range)) return;
  Lock lock(mutex_);
  fences_.note_use(stream, range);
}

void Streams::makes_again(Lane stream) {
  Lock lock(mutex_);
  if (!closed_) order_.after(stream, order_.operations());
}

void Streams::read_again(Lane stream, Range& range) {
  Lock lock(mutex_);
  fences_.to_follow(stream, range);
}

void Streams::record(const void* address, Lane stream) {
  Lock lock(mutex_);
  Range* range = ranges_.find_live(address);
  if (range == nullptr) return;
  auto& recorded = range->recorded;
  if (std::find(recorded.begin(), recorded.end(), stream) == recorded.end()) recorded.push_back(stream);
}

void Streams::start_timing(bool ahead) {
  Lock lock(mutex_);
  if (!closed_) order_.stopwatch().start(ahead);
}

void Streams::row_begins(Lane stream) {
  Lock lock(mutex_);
  if (!closed_) order_.stopwatch().row(stream);
}

std::vector<std::uint64_t> Streams::row_times() {
  Lock lock(mutex_);
  if (closed_) return {};
  order_.stopwatch().stop();
  order_.wait(order_.streams());
  return order_.stopwatch().read();
}

}  // namespace vt
