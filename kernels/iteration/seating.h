// Where a plan wants its tensors to be: the chunks it numbers, and which of the device's they are.
//
// A plan numbers chunks from 0 on. Which of the device's chunk is which number is chosen once, when the plan is first followed:
// tensors that are there already keep the chunks they have, as far as no two of them claim one. From then on each tensor that is
// allocated asks for its chunks, and for the addresses that such a tensor had in the iteration before, which lead there.
//
// Covers: the numbers, and what is known of the iteration before. Leaves: giving out chunks (engine/seats.h), who is allocated
// when (plan_runner.h).
// Thread-safety: none; recording.h guards it.
#pragma once

#include <utility>
#include <vector>

#include "engine/engine.h"

namespace vt {

class Seating {
 public:
  // A tensor of the plan that is there.
  struct Present {
    std::uint32_t tensor;
    Range* range;
    std::uint64_t serial;
  };

  Seating() = default;
  // `first`: [tensors + 1] where the vTensors of each tensor begin; `number`: of the chunk each is to have, kNone: any.
  Seating(std::vector<std::uint32_t> first, std::vector<std::uint32_t> number)
      : first_(std::move(first)), chunk_(std::move(number)), before_(first_.size() - 1) {}

  bool none() const noexcept { return first_.empty(); }
  // The plan is followed from now on.
  void begin(Seats& seats, const std::vector<Present>& present);
  // An iteration begins, after one that was or was not `as_planned`: who is there and sits elsewhere goes home. When the plan is
  // first followed, and after deviations, ever more seldom, as copying has its price, too. Pre: begin().
  void send_home(Engine& engine, const std::vector<Present>& present, bool as_planned);
  // Of a tensor that is about to be allocated.
  Wish wish(std::uint32_t tensor) const;
  // It was.
  void born(std::uint32_t tensor, Range& range) {
    if (!none() && mostly(range.in_seat, range)) before_[tensor] = &range;
  }

 private:
  std::span<const ChunkId> chunks(std::uint32_t tensor) const {
    return std::span(chunk_).subspan(first_[tensor], first_[tensor + 1] - first_[tensor]);
  }
  std::vector<PlannedMove> misplaced(const Seats& seats, const std::vector<Present>& present) const;
  void choose(Seats& seats, const std::vector<Present>& present);

  std::vector<std::uint32_t> first_;
  std::vector<ChunkId> chunk_;   // by vTensor: numbers until they are chosen, chunks from then on
  std::vector<Range*> before_;   // by tensor; records are never freed while their engine lives
  ChunkNumbers numbers_;         // once they are chosen
  bool chosen_ = false;
  std::uint32_t homecomings_ = 0;
};

}  // namespace vt
