// Steps under way that overwrite a tensor, while others may write it, too: another part of it, in another thread.
//
// What is there then neither of them has made. So a step is lost if anybody else says before it ends that they write; whoever
// begins while others are at it reads what nobody knows, and is lost by that.
//
// Covers: which steps are under way; whom a write concerns.
// Leaves: contents (recipes.h).
// Requires: the engine's lock.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

namespace vt {

struct Range;
struct Step;

class Overwriting {
 public:
  void begin(Step& step, Range& range) { under_way_.push_back({&step, &range}); }
  // The tensor it overwrote; nullptr if it did not.
  Range* end(const Step& step) {
    const auto found = std::ranges::find(under_way_, &step, &Pair::first);
    if (found == under_way_.end()) return nullptr;
    Range* const range = found->second;
    under_way_.erase(found);
    return range;
  }
  bool any(const Range& range) const { return std::ranges::find(under_way_, &range, &Pair::second) != under_way_.end(); }
  // `lose` is called for those that overwrite it, but for the one that writes it now.
  template <typename Lose>
  void written(const Range& range, const Step* by, const Lose& lose) const {
    for (const auto& [step, overwritten] : under_way_) {
      if (overwritten == &range && step != by) lose(*step);
    }
  }

 private:
  using Pair = std::pair<Step*, Range*>;
  std::vector<Pair> under_way_;  // one for each thread at most
};

}  // namespace vt
