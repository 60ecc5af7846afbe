// The steps of a plan, by which an iteration finds its place in it.
//
// A *step* is an operation, and how many tensors were allocated since the one before. So many steps in a row tell a place in a
// plan, if not always one place alone, as layers are alike.
//
// Covers: the newest steps of an iteration, all of a plan, where the ones are in the other.
// Leaves: when that is asked (way_back.h).
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

namespace vt {

using StepId = std::uint64_t;

// The newest steps, and a number for as many as tell a place.
class Trail {
 public:
  static constexpr std::size_t kLong = 16;

  void add(StepId step) noexcept {
    StepId& oldest = steps_[count_++ % kLong];
    sum_ = sum_ * kFactor + step - oldest * kShare;
    oldest = step;
  }
  bool tells() const noexcept { return count_ >= kLong; }
  std::uint64_t sum() const noexcept { return sum_; }

 private:
  static constexpr std::uint64_t kFactor = 0x9e3779b97f4a7c15ull;
  static constexpr std::uint64_t kShare = [] {  // of the step that is one too many
    std::uint64_t share = 1;
    for (std::size_t k = 0; k < kLong; ++k) share *= kFactor;
    return share;
  }();

  std::array<StepId, kLong> steps_{};
  std::size_t count_ = 0;
  std::uint64_t sum_ = 0;
};

// Of a plan, by row.
class Steps {
 public:
  Steps() = default;
  // `births`: [rows] how many tensors were allocated before each row.
  Steps(std::vector<StepId> steps, std::vector<std::uint32_t> births);

  static StepId step(std::uint64_t op, std::size_t births_since) noexcept;
  bool is(std::uint64_t row, StepId step) const noexcept { return row < steps_.size() && steps_[row] == step; }
  std::uint32_t births_before(std::uint32_t row) const noexcept { return births_[row]; }
  // The row nearest to `expected`, and not before `first`, at which a trail ends like this; kNone if there is none.
  std::uint32_t find(const Trail& trail, std::int64_t expected, std::int64_t first) const noexcept;

 private:
  std::vector<StepId> steps_;
  std::vector<std::uint32_t> births_;
  std::vector<std::pair<std::uint64_t, std::uint32_t>> places_;  // where each trail ends, in order
};

}  // namespace vt
