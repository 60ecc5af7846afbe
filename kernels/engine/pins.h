// Pins of single vTensors, and the graces of what faults brought.
//
// Whole ranges are pinned without the lock (Range::pins, Engine::try_pin); what is missing, or used in part, is pinned here.
//
// Covers: counting pins, dating uses of parts, keeping from leaving for a while what a fault brought in: an instruction or a loop
// that reads one tensor and writes another could take its own chunks away in turns else.
// Leaves: bringing what is pinned (uses.h). Requires: the lock.
#pragma once

#include <algorithm>
#include <vector>

#include "engine/ground.h"

namespace vt {

class Pins {
 public:
  explicit Pins(const Ground& ground) : ground_(ground) {}

  void pin(const Use& use) {
    Range& range = *use.range;
    for (std::uint32_t i = use.first; i < use.last; ++i) ++range.parts[i].pins;
    range.part_pins += use.last - use.first;
    if (use.last - use.first == range.chunks) {
      range.last_use.store(ground_.now(), std::memory_order_relaxed);
      return;
    }
    if (range.part_use.empty()) range.part_use.assign(range.chunks, 0);
    std::fill(range.part_use.begin() + use.first, range.part_use.begin() + use.last, ground_.now());
  }
  void unpin(const Use& use) noexcept {
    for (std::uint32_t i = use.first; i < use.last; ++i) --use.range->parts[i].pins;
    use.range->part_pins -= use.last - use.first;
  }

  // The pins of `use` stay until so many others have come after it.
  void keep(const Use& use, std::size_t most) {
    graces_.push_back(use);
    while (graces_.size() > most) {
      unpin(graces_.front());
      graces_.erase(graces_.begin());
    }
  }
  // False if there were none.
  bool release_graces() {
    const bool any = !graces_.empty();
    for (const Use& use : graces_) unpin(use);
    graces_.clear();
    return any;
  }
  // Those of a tensor that dies.
  void forget(const Range& range) {
    std::erase_if(graces_, [&](const Use& use) {
      if (use.range != &range) return false;
      unpin(use);
      return true;
    });
  }

 private:
  const Ground& ground_;
  std::vector<Use> graces_;  // the oldest first
};

}  // namespace vt
