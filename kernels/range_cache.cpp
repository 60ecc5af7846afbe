#include "range_cache.h"

namespace vt {

void RangeCache::put(Range* range) {
  by_size_[range->chunks].push_back(range);
  chunks_ += range->chunks;
  ++size_;
}

Range* RangeCache::take(std::uint32_t chunks) {
  const auto found = by_size_.find(chunks);
  if (found == by_size_.end() || found->second.empty()) return nullptr;
  Range* range = found->second.back();
  found->second.pop_back();
  chunks_ -= chunks;
  --size_;
  return range;
}

Range* RangeCache::take_any() {
  for (const auto& [chunks, ranges] : by_size_) {
    if (!ranges.empty()) return take(chunks);
  }
  return nullptr;
}

Range* RangeCache::take_oldest() {
  std::deque<Range*>* oldest = nullptr;
  for (auto& [chunks, ranges] : by_size_) {
    if (ranges.empty() || ranges.front()->pinned()) continue;
    if (oldest == nullptr || ranges.front()->freed_at < oldest->front()->freed_at) oldest = &ranges;
  }
  if (oldest == nullptr) return nullptr;
  Range* range = oldest->front();
  oldest->pop_front();
  chunks_ -= range->chunks;
  --size_;
  return range;
}

}  // namespace vt
