// The lives of tensors, the states of their vTensors, and every count that follows from them.
//
// Covers: which ranges are live tensors; applying an event of residency.h; the counts of a range (resident, missing); the bytes
// that are absent and borrowed; the list of ranges that have something resident, from which victims are chosen.
// Leaves: doing what an event means (moves.h, slots.h).
// Requires: the lock.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/ground.h"

namespace vt {

class Roster {
 public:
  explicit Roster(Ground& ground) : ground_(ground) {}

  // A tensor of `bytes` begins its life in a range. Returns how many of its vTensors are not resident.
  std::uint32_t begin(Range& range, Bytes bytes);
  // It ends. Pre: its vTensors that are not resident are forgotten.
  void end(Range& range);
  // A vTensor that is not resident is not counted any more.
  void forget(const Range& range, std::uint32_t index);

  // `missing` counts a vTensor from before its leaving starts (range.h), so leaving `resident` does not add to it again.
  void enter(Range& range, std::uint32_t index, Event event);

  std::size_t live() const noexcept { return live_; }
  // Ranges with something resident, in no order.
  std::span<Range* const> ranges() const noexcept { return ranges_; }
  // Empty, or what is broken about a live range.
  std::string validate(const Range& range) const;

 private:
  void enroll(Range& range);
  void strike(Range& range);

  Ground& ground_;
  std::vector<Range*> ranges_;
  std::size_t live_ = 0;
  std::uint64_t serials_ = 0;
};

}  // namespace vt
