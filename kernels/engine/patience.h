// How long things may be recomputed, where nothing is copied and the only other way is to use more memory.
//
// A budget below what a program can do with is held by making the same things again and again; a step can take 25 times as long,
// and longer each time. So much nobody waits for.
//
// Covers: what making has taken since the iteration began, beside what everything else takes.
// Leaves: making (remake.h), what is done instead (supply.h).
// Requires: the lock.
#pragma once

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "memory/policy.h"

namespace vt {

class Patience {
 public:
  // An iteration begins. `making_ns`: what making has taken so far. Returns whether it was too much of the one that ends.
  bool begin(std::uint64_t making_ns) noexcept {
    last_ns_ = others_ns(making_ns);
    begun_ = Clock::now();
    before_ns_ = making_ns;
    return std::exchange(over_, false);
  }

  // Whether making has taken too much of it by now. Where nobody tells of iterations, of the last seconds.
  bool is_over(std::uint64_t making_ns) noexcept {
    const bool before = over_;
    if (ns_since(begun_) > kLongest) begin(making_ns);
    const bool over = takes_too_much(making_ns - before_ns_, std::max(last_ns_, others_ns(making_ns)));
    over_ = over || before;
    return over;
  }

 private:
  static constexpr std::uint64_t kLongest = 10'000'000'000;

  std::uint64_t others_ns(std::uint64_t making_ns) const noexcept {
    const std::uint64_t all = ns_since(begun_), making = making_ns - before_ns_;
    return all - std::min(all, making);  // several threads make things
  }

  Clock::time_point begun_ = Clock::now();
  std::uint64_t before_ns_ = 0;
  std::uint64_t last_ns_ = 0;  // what all else took in the iteration before
  bool over_ = false;          // it was, since the iteration began
};

}  // namespace vt
