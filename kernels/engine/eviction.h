// Whose turn it is to leave when room is needed and no plan says so.
//
// Covers: the scan over what is resident, by the scores of policy.h; the handshake with operations that pin without the lock (range.h).
// Leaves: leaving (moves.h), how much room is needed (supply.h).
// Requires: the lock.
#pragma once

#include <vector>

#include "engine/moves.h"
#include "engine/roster.h"

namespace vt {

class Eviction {
 public:
  Eviction(Ground& ground, const Roster& roster, Moves& moves) : ground_(ground), roster_(roster), moves_(moves) {}

  // Starts the leaving of up to `want` vTensors of the best victim (all of it with whole-tensor granularity). nothing_leaves if there
  // is none.
  Status evict_some(std::size_t want);
  // A vTensor leaves, unless an operation was faster and has pinned its range: `pinned` then. Pre: resident, no pins of its own.
  Status leave(Range& range, std::uint32_t index, bool* pinned);

 private:
  Range* choose_victim() const;
  std::vector<std::uint32_t> victims_in(const Range& range) const;

  Ground& ground_;
  const Roster& roster_;
  Moves& moves_;
};

}  // namespace vt
