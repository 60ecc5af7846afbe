// Ranges whose tensors are gone: what they keep, for whom, and until when.
//
// A freed range that was wholly resident stays as it is (*cached*): the next tensor of that size gets it, and in a training step
// with room to spare every allocation ends here. One that lost its chunks may keep its addresses (*former*, mappings.h), or has
// to wait until nobody counts it as pinned and nothing uses it (*limbo*); then its addresses are free.
//
// Covers: the end of a tensor, ranges to be had again, giving them up.
// Leaves: finding chunks (supply.h), making new ranges (allocation.h).
// Requires: the lock.
#pragma once

#include <vector>

#include "engine/chunks.h"
#include "engine/mappings.h"
#include "engine/moves.h"
#include "engine/slots.h"
#include "memory/range_cache.h"

namespace vt {

class Freed {
 public:
  Freed(Ground& ground, RangeTable& ranges, Roster& roster, ChunkPool& pool, Chunks& chunks, Mappings& mappings, Slots& slots,
        Moves& moves)
      : ground_(ground),
        ranges_(ranges),
        roster_(roster),
        pool_(pool),
        chunks_(chunks),
        mappings_(mappings),
        slots_(slots),
        moves_(moves) {}

  // A tensor dies: what a new owner must not inherit is taken from its range, which is cached if `keep` and it is resident.
  void bury(Range& range, bool keep);
  // A range that is no tensor gives up its chunks and slots, and its addresses as soon as they are out of use.
  void empty(Range& range);

  // A range of this size: cached (Life::cached), chunks and all, or else a former one, which needs chunks; nullptr if there is
  // none.
  Range* take(std::uint32_t chunks);

  // The addresses that lead to the chunks that are wanted, if most of those are free: little need be mapped then. nullptr if they
  // are not, or if they are another's by now.
  Range* take_home(const Wish& wish);
  // From now on freed ranges are former ones, never cached: of those with seats addresses that lead to so many chunks are kept,
  // and the chunks are free for whoever wants just those.
  void keep_homes(std::size_t chunks);

  // Chunks that cached ranges keep.
  std::size_t idle() const noexcept { return cached_.chunks(); }
  // Empties the cached range that nobody asked for the longest. False if there is none that can be.
  bool give_up_oldest();
  // All of them, pinned or not.
  void give_up_all();
  // No addresses are left: those of freed tensors are given back, after whatever uses them.
  void give_up_addresses();
  // Gives back what is out of use by now.
  void sweep();
  // Gives back all that nobody pins, ends what the dead used in place, and leads no address to anything but its own chunk any
  // more.
  // Pre: nothing is under way.
  void quiesce();

 private:
  RangeCache& formers_like(const Range& range) { return range.seated ? homes_ : formers_; }
  Range* take_former(std::uint32_t chunks);
  void release_part(Range& range, std::uint32_t index);
  void keep_former(Range& range);
  void wait_in_limbo(Range& range);
  void retire(Range& range);

  Ground& ground_;
  RangeTable& ranges_;
  Roster& roster_;
  ChunkPool& pool_;
  Chunks& chunks_;
  Mappings& mappings_;
  Slots& slots_;
  Moves& moves_;
  RangeCache cached_;
  RangeCache formers_;  // for anybody
  RangeCache homes_;    // former ranges too, each for the next tensor whose seats its addresses lead to
  std::size_t wanted_homes_ = 0;
  std::vector<Range*> limbo_;
};

}  // namespace vt
