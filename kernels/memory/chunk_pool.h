// The budget: which physical chunks exist and which of them are free.
//
// Covers: taking and giving back chunks, growing and shrinking the budget, the count that never exceeds it (I3).
// Leaves: mapping chunks (engine) and choosing whose chunk is taken when none is free (policy.h).
// Thread-safety: none of its own; the engine's lock guards it.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "device/driver.h"
#include "memory/chunk_list.h"

namespace vt {

// A plan gives out chunks by numbers, the lowest the most (engine/seats.h), and those from `given` on to nobody. None: no plan
// does.
struct ChunkNumbers {
  std::vector<std::uint32_t> of = {};  // by chunk
  std::uint32_t given = 0;

  std::uint32_t at(ChunkId chunk) const noexcept { return chunk < of.size() ? of[chunk] : kNone; }
  bool are_nobodys(ChunkId chunk) const noexcept { return !of.empty() && at(chunk) >= given; }
};

class ChunkPool {
 public:
  // `capacity` chunks at most. Throws InvalidUse if the driver can not provide for so many.
  ChunkPool(Driver& driver, std::size_t capacity);

  // Which free chunk is taken. Newest: its memory is warm, and the stream that gave it up need not wait for itself. Oldest: on an
  // ordered device, whoever else wants it waits the least.
  enum class Take : std::uint8_t { newest, oldest };

  // Takes a free chunk that nothing leaves, unmapped; creates one if there is none and the budget allows. out_of_budget
  // otherwise.
  Status acquire(ChunkId* chunk, Take which = Take::newest);
  // What asks for any takes the chunk of the highest number from now on.
  void number(ChunkNumbers numbers);
  // Whether it is given to somebody, while one that is not is free.
  bool is_kept(ChunkId chunk) const noexcept { return nobodys_ > 0 && !numbers_.are_nobodys(chunk); }
  // Takes the chunk whose content has been leaving the longest. False if there is none.
  bool acquire_leaving(ChunkId* chunk);
  // Takes this chunk if it is free; if its content is leaving only where that is `wanted`.
  bool take(ChunkId chunk, bool wanted);
  // One more than the capacity, for an operation that cannot do without. repay() makes it good.
  Status overdraw(ChunkId* chunk);
  // Destroys a free chunk that is beyond the capacity. Pre: overdrawn, and nothing may touch or map the chunk any more.
  Status repay(ChunkId chunk);
  // Gives a chunk back; it stays created. Pre: held, unmapped.
  void release(ChunkId chunk);
  // The same while its content is still copied out (ordered devices): its next owner will wait for that. Pre: called in the order
  // in which the copies end.
  void release_leaving(ChunkId chunk);
  // Those that `left`, the oldest first, are as free as any.
  void settle(const std::function<bool(ChunkId)>& left);
  // Changes the budget. When it shrinks, free chunks are destroyed; out_of_budget while more than `capacity`
  // are held, and nothing changed then. Pre: nothing is leaving if it shrinks.
  Status resize(std::size_t capacity);
  // Destroys every free chunk. Pre: nothing is leaving.
  void trim();

  std::size_t capacity() const noexcept { return capacity_; }
  std::size_t held() const noexcept { return held_; }
  std::size_t peak_held() const noexcept { return peak_; }
  std::size_t free() const noexcept { return free_.size() + leaving_.size(); }
  std::size_t leaving() const noexcept { return leaving_.size(); }
  // Whether it is free and nothing leaves it.
  bool is_free(ChunkId chunk) const noexcept { return free_.contains(chunk); }
  // Whether it is free, if need be while its content leaves.
  bool may_take(ChunkId chunk) const noexcept { return free_.contains(chunk) || leaving_.contains(chunk); }
  const ChunkList& free_chunks() const noexcept { return free_; }
  const ChunkList& leaving_chunks() const noexcept { return leaving_; }
  std::size_t overdrawn() const noexcept { return overdrawn_; }
  std::size_t peak_overdrawn() const noexcept { return peak_overdrawn_; }
  void reset_peak() noexcept {
    peak_ = held_;
    peak_overdrawn_ = overdrawn_;
  }

  // Empty, or the invariant that is broken.
  std::string validate() const;

 private:
  void put(ChunkId chunk);
  ChunkId pick(ChunkId free);
  ChunkId pick_leaving();  // the one that has been leaving the longest
  void changed();  // counts the peak and stops the program if the budget is exceeded

  Driver& driver_;
  std::size_t capacity_;
  std::size_t held_ = 0;
  std::size_t peak_ = 0;
  std::size_t overdrawn_ = 0;  // chunks that exist beyond the capacity
  std::size_t peak_overdrawn_ = 0;
  ChunkList free_, leaving_;
  ChunkNumbers numbers_;
  std::size_t nobodys_ = 0;  // free chunks that a plan gives to nobody: asked for each vTensor that has no seat
};

}  // namespace vt
