// Which chunk a plan wants each vTensor to have (its *seat*), so that its address leads there already whenever it has one.
//
// Leading an address to another chunk costs more than most kernels take, and many addresses may lead to one chunk. So a plan
// gives chunks out like registers (lgm/placing/seats.py): whoever is there at the same time has different ones, the same in each
// iteration. A seat is a wish: what finds it taken has another chunk for this time, and goes home when it comes back.
//
// Covers: telling vTensors their seats, and what a plan must know of those that have chunks already. Part of the engine's front,
// on ordered devices.
// Leaves: taking a seat (allocation.h, ordered_mappings.h), whose seat is where (iteration/seating.h).
// Thread-safety: every call may come from any thread; each takes the engine's lock.
#pragma once

#include <vector>

#include "engine/freed.h"

namespace vt {

class Seats {
 public:
  // `closed`: the device is gone.
  Seats(std::mutex& mutex, const std::atomic<bool>& closed, RangeTable& ranges, ChunkPool& pool, Chunks& chunks, Freed& freed,
        Moves& moves)
      : mutex_(mutex), closed_(closed), ranges_(ranges), pool_(pool), chunks_(chunks), freed_(freed), moves_(moves) {}

  // All chunks there are, and those that are yet to be made.
  std::vector<ChunkId> chunks() const;
  // The chunks a tensor has, by vTensor; kNone: none. Empty if the range is another tensor by now.
  std::vector<ChunkId> held(const Range& range, std::uint64_t serial) const;
  // It is to have these from now on. Nothing moves for that.
  void want(Range& range, std::uint64_t serial, std::span<const ChunkId> chunks);
  // What was dropped is about to be recomputed, in memory that will be its: that is wanted where it is.
  Wish again(const Range& range, std::vector<ChunkId>* chunks) const;
  // A plan is followed that has seats for so many vTensors: their addresses are kept from one iteration to the next, and what has
  // no seat takes the chunks that are seats the least.
  void begin(std::size_t vtensors, ChunkNumbers numbers);
  // Stands until all that leaves has left: its chunks are free for those whose seats they are.
  void wait_for_leaving();
  // It is not followed just now.
  void pause();
  // There is none any more: what is freed is cached again.
  void end();

 private:
  std::mutex& mutex_;
  const std::atomic<bool>& closed_;
  RangeTable& ranges_;
  ChunkPool& pool_;
  Chunks& chunks_;
  Freed& freed_;
  Moves& moves_;
};

}  // namespace vt
