#include "range_cache.h"

#include <algorithm>

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
  std::deque<Range*>* from = nullptr;
  std::deque<Range*>::iterator oldest;
  for (auto& [chunks, ranges] : by_size_) {
    const auto first = std::find_if(ranges.begin(), ranges.end(), [](const Range* range) { return !range->pinned(); });
    if (first == ranges.end() || (from != nullptr && (*first)->freed_at >= (*oldest)->freed_at)) continue;
    from = &ranges;
    oldest = first;
  }
  if (from == nullptr) return nullptr;
  Range* range = *oldest;
  from->erase(oldest);
  chunks_ -= range->chunks;
  --size_;
  return range;
}

}  // namespace vt
