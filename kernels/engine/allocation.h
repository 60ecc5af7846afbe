// Memory for new tensors.
//
// Covers: a freed range to be had again, or a new one with chunks behind it; what begins its life in the host store because
// every chunk is pinned.
// Leaves: the end of tensors (freed.h), chunks (supply.h), addresses (range_table.h).
// Requires: the lock.
#pragma once

#include "engine/messages.h"
#include "engine/supply.h"

namespace vt {

class Allocation {
 public:
  Allocation(Ground& ground, RangeTable& ranges, Roster& roster, ChunkPool& pool, Chunks& chunks, Mappings& mappings,
             Slots& slots, Moves& moves, Freed& freed, Supply& supply)
      : ground_(ground),
        ranges_(ranges),
        roster_(roster),
        pool_(pool),
        chunks_(chunks),
        mappings_(mappings),
        slots_(slots),
        moves_(moves),
        freed_(freed),
        supply_(supply) {}

  // A live tensor of `bytes`, used on `stream` first, where `wish` wants it as far as that is free. If there is no memory for it
  // nothing changed. May let go of the lock.
  Status make(Lock& lock, Bytes bytes, const char* operation, Lane stream, const Wish& wish, Range** made);

 private:
  // What looking for the chunks of one allocation has come upon.
  struct Found {
    bool full = false;       // nothing leaves
    bool overdrawn = false;  // some are beyond the budget
  };

  Status check_size(std::size_t chunks) const;
  Status build(Lock& lock, std::uint32_t chunks, const char* operation, Lane stream, const Wish& wish, Range** built);
  Status back(Lock& lock, Range& range, const char* operation);
  Status find_chunk(Lock& lock, Range& range, std::uint32_t index, std::size_t want, const char* operation, ChunkId* chunk,
                    Found& found);
  Shortage shortage(std::size_t chunks, std::size_t lacking, bool overdrawn) const;

  Ground& ground_;
  RangeTable& ranges_;
  Roster& roster_;
  ChunkPool& pool_;
  Chunks& chunks_;
  Mappings& mappings_;
  Slots& slots_;
  Moves& moves_;
  Freed& freed_;
  Supply& supply_;
};

}  // namespace vt
