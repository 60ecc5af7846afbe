// The budget: which physical chunks exist and which of them are free.
//
// Covers: taking and giving back chunks, growing and shrinking the budget, the count that never exceeds it (I3).
// Leaves: mapping chunks (engine) and choosing whose chunk is taken when none is free (policy.h).
// Thread-safety: none of its own; the engine's lock guards it.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "driver.h"

namespace vt {

class ChunkPool {
 public:
  // `capacity` chunks at most. Throws InvalidUse if the driver can not provide for so many.
  ChunkPool(Driver& driver, std::size_t capacity);

  // Takes a free chunk, unmapped; creates one if none is free and the budget allows. out_of_budget otherwise.
  Status acquire(ChunkId* chunk);
  // Takes this chunk if it is free.
  bool take(ChunkId chunk);
  // Creates a chunk beyond the capacity, for an operation that cannot do without. repay() makes it good.
  Status overdraw(ChunkId* chunk);
  // Destroys a free chunk that is beyond the capacity. Pre: overdrawn, and nothing may touch or map the chunk any more.
  Status repay(ChunkId chunk);
  // Gives a chunk back; it stays created and is the next to be taken (its memory is warm). Pre: held, unmapped.
  void release(ChunkId chunk);
  // Changes the budget. When it shrinks, free chunks are destroyed; out_of_budget while more than `capacity`
  // are held, and nothing changed then.
  Status resize(std::size_t capacity);
  // Destroys every free chunk.
  void trim();

  std::size_t capacity() const noexcept { return capacity_; }
  std::size_t held() const noexcept { return held_; }
  std::size_t peak_held() const noexcept { return peak_; }
  std::size_t free() const noexcept { return free_.size(); }
  const std::vector<ChunkId>& free_chunks() const noexcept { return free_; }
  std::size_t overdrawn() const noexcept { return overdrawn_; }
  std::size_t peak_overdrawn() const noexcept { return peak_overdrawn_; }
  void reset_peak() noexcept {
    peak_ = held_;
    peak_overdrawn_ = overdrawn_;
  }

  // Empty, or the invariant that is broken.
  std::string validate() const;

 private:
  void changed();  // counts the peak and stops the program if the budget is exceeded

  Driver& driver_;
  std::size_t capacity_;
  std::size_t held_ = 0;
  std::size_t peak_ = 0;
  std::size_t overdrawn_ = 0;  // chunks that exist beyond the capacity
  std::size_t peak_overdrawn_ = 0;
  std::vector<ChunkId> free_;
};

}  // namespace vt
