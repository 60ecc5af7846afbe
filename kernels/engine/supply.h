// Chunks for whoever needs them: free ones, those freed tensors keep, those others leave, and the budget's size.
//
// Covers: taking a chunk and making room for it, keeping to the budget after it was overdrawn, another budget.
// Leaves: whose turn it is to leave (eviction.h), what a chunk is taken for (allocation.h, uses.h, arrivals.h).
// Requires: the lock.
#pragma once

#include "engine/demand.h"
#include "engine/eviction.h"
#include "engine/freed.h"
#include "engine/pins.h"
#include "engine/slots.h"

namespace vt {

// A chunk that is needed.
struct Wanted {
  const Range* range = nullptr;  // for this vTensor, which returns; nullptr: for a new tensor
  std::uint32_t index = 0;
  std::size_t count = 1;         // chunks needed in all, so that evictions start together and their copies overlap
  bool keep_graces = false;      // for a fault: what earlier faults brought must stay
};

class Supply {
 public:
  Supply(Ground& ground, ChunkPool& pool, Mappings& mappings, Slots& slots, Moves& moves, Freed& freed, Eviction& eviction,
         Pins& pins, Demand& demand)
      : ground_(ground),
        pool_(pool),
        mappings_(mappings),
        slots_(slots),
        moves_(moves),
        freed_(freed),
        eviction_(eviction),
        pins_(pins),
        demand_(demand) {}

  // Takes a chunk, making room if need be. nothing_leaves when all is pinned by operations that run or are being asked for. May
  // let go of the lock.
  Status take(Lock& lock, const Wanted& wanted, ChunkId* chunk);
  // Takes one for which nothing need leave, for a vTensor that returns.
  Status take_free(const Range& range, std::uint32_t index, ChunkId* chunk);
  // One beyond the budget, where the host's memory cannot be used in place. nothing_leaves if there is none.
  Status overdraw(ChunkId* chunk);
  // An absent vTensor comes back, beyond the budget if need be.
  Status bring_beyond(Range& range, std::uint32_t index);
  // Whether one can be had for which nothing leaves.
  bool has_room() const noexcept { return pool_.held() < pool_.capacity() || freed_.idle() > 0; }
  void give_back(ChunkId chunk) { mappings_.give_back(chunk); }

  // A call that may need memory begins: what has ended takes effect, and the budget is kept to again.
  void begin() {
    moves_.glance();
    restore_budget();
  }
  // What an operation held beyond the budget leaves after it: the budget does not wait for tensors to be freed.
  void restore_budget() {
    if (pool_.overdrawn() > pool_.free()) leave_overdrawn();
  }
  // Grows or shrinks the budget; shrinking evicts what is too much. Throws OutOfMemory; nothing is lost then. Lets go of the
  // lock.
  void resize(Lock& lock, std::size_t budget_chunks);
  // All that is not pinned leaves; cached memory goes back to the pool. Lets go of the lock.
  void evict_all(Lock& lock);
  // Nothing that was asked of the device goes on, and nothing leads to former chunks. May let go of the lock.
  void quiesce(Lock& lock);

 private:
  void leave_overdrawn();
  std::size_t most_wanted() const;
  bool belong_in_place(std::size_t count) const;
  bool leave_in_vain(std::size_t count);
  Status take_any(ChunkPool::Take which, ChunkId* chunk);
  template <typename Missing>
  Status make_room(Lock& lock, Missing missing);
  bool host_store_fails(std::uint64_t failed_before) const;

  Ground& ground_;
  ChunkPool& pool_;
  Mappings& mappings_;
  Slots& slots_;
  Moves& moves_;
  Freed& freed_;
  Eviction& eviction_;
  Pins& pins_;
  Demand& demand_;
};

}  // namespace vt
