// Freed ranges that stay mapped, to be handed out again by size.
//
// Covers: the newest range of a size (its memory is warm) or the best, the oldest of all (the one to give up first).
// Leaves: unmapping what is given up (engine). With room to spare every allocation of a training step is served
// from here, and nothing is ever remapped.
// Thread-safety: none of its own; the engine's lock guards it.
#pragma once

#include <deque>
#include <functional>
#include <unordered_map>

#include "memory/range.h"

namespace vt {

class RangeCache {
 public:
  void put(Range* range);
  Range* take(std::uint32_t chunks);  // nullptr if no range of this size is here
  // Of the newest ranges of a size the one of most value; nullptr if none has any.
  Range* take_best(std::uint32_t chunks, const std::function<std::uint32_t(const Range&)>& value);
  // This range; false if it is not here.
  bool take(Range* range);
  // The range freed first among those no operation counts as pinned; nullptr if there is none.
  Range* take_oldest();
  // Any range, pinned or not, to empty the cache for good.
  Range* take_any();

  std::size_t chunks() const noexcept { return chunks_; }

 private:
  using Ranges = std::deque<Range*>;  // of one size, oldest at the front

  Ranges& of_size(std::uint32_t chunks);
  Range* remove(Ranges& ranges, Ranges::iterator at);

  std::unordered_map<std::uint32_t, Ranges> by_size_;
  Ranges* newest_ = nullptr;  // asked for last, most often again: an entry of `by_size_`, which stay where they are
  std::uint32_t newest_size_ = 0;
  std::size_t chunks_ = 0;
};

}  // namespace vt
