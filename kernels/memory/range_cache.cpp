#include "memory/range_cache.h"

#include <algorithm>

namespace vt {

namespace {
constexpr std::size_t kLook = 32;  // ranges, in search of the best
}  // namespace

RangeCache::Ranges& RangeCache::of_size(std::uint32_t chunks) {
  if (newest_ == nullptr || newest_size_ != chunks) {
    newest_ = &by_size_[chunks];
    newest_size_ = chunks;
  }
  return *newest_;
}

void RangeCache::put(Range* range) {
  of_size(range->chunks).push_back(range);
  chunks_ += range->chunks;
}

Range* RangeCache::take(std::uint32_t chunks) {
  Ranges& ranges = of_size(chunks);
  if (ranges.empty()) return nullptr;
  return remove(ranges, ranges.end() - 1);
}

bool RangeCache::take(Range* range) {
  Ranges& ranges = of_size(range->chunks);
  const auto at = std::find(ranges.begin(), ranges.end(), range);
  if (at == ranges.end()) return false;
  remove(ranges, at);
  return true;
}

Range* RangeCache::remove(Ranges& ranges, Ranges::iterator at) {
  Range* range = *at;
  ranges.erase(at);
  chunks_ -= range->chunks;
  return range;
}

Range* RangeCache::take_best(std::uint32_t chunks, const std::function<std::uint32_t(const Range&)>& value) {
  Ranges& ranges = of_size(chunks);
  auto best = ranges.end();
  std::uint32_t most = 0;
  for (std::size_t i = 0; i < std::min(ranges.size(), kLook) && most < chunks; ++i) {
    const auto at = ranges.end() - 1 - static_cast<std::ptrdiff_t>(i);
    const std::uint32_t worth = (*at)->pinned() ? 0 : value(**at);
    if (worth <= most) continue;
    most = worth;
    best = at;
  }
  return best == ranges.end() ? nullptr : remove(ranges, best);
}

Range* RangeCache::take_any() {
  for (const auto& [chunks, ranges] : by_size_) {
    if (!ranges.empty()) return take(chunks);
  }
  return nullptr;
}

Range* RangeCache::take_oldest() {
  Ranges* from = nullptr;
  Ranges::iterator oldest;
  for (auto& [chunks, ranges] : by_size_) {
    const auto first = std::find_if(ranges.begin(), ranges.end(), [](const Range* range) { return !range->pinned(); });
    if (first == ranges.end() || (from != nullptr && (*first)->freed_at >= (*oldest)->freed_at)) continue;
    from = &ranges;
    oldest = first;
  }
  return from == nullptr ? nullptr : remove(*from, oldest);
}

}  // namespace vt
