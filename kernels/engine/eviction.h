// Whose turn it is to leave when room is needed and no plan says so, and how.
//
// Covers: the scan over what is resident, by the scores of policy.h; whether it is copied or dropped, by what both take as
// measured; the handshake with operations that pin without the lock (range.h).
// Leaves: leaving by a copy (moves.h) and without one (remake.h), how much room is needed (supply.h).
// Requires: the lock.
#pragma once

#include <vector>

#include "engine/moves.h"
#include "engine/remake.h"
#include "engine/roster.h"

namespace vt {

class Eviction {
 public:
  Eviction(Ground& ground, const Roster& roster, CopyEngine& copies, Moves& moves, Remake& remake)
      : ground_(ground), roster_(roster), copies_(copies), moves_(moves), remake_(remake) {}

  // Starts the leaving of up to `want` vTensors of the best victim (all of it with whole-tensor granularity, or where it is
  // dropped). nothing_leaves if there is none.
  Status evict_some(std::size_t want);
  // Whether what leaves is recomputed for so long that nothing more should.
  bool is_in_vain() noexcept { return remake_.is_in_vain(); }
  // A vTensor leaves, unless an operation was faster and has pinned its range: `pinned` then. Pre: resident, no pins of its own.
  Status leave(Range& range, std::uint32_t index, bool* pinned);

 private:
  Range* choose_victim() const;
  // What making it again may take, if it leaves without a copy; nothing if it is copied.
  std::optional<std::uint64_t> worth_dropping(const Range& range) const;
  std::uint64_t copying_ns(const Range& range) const;
  std::vector<std::uint32_t> victims_in(const Range& range) const;

  Ground& ground_;
  const Roster& roster_;
  CopyEngine& copies_;
  Moves& moves_;
  Remake& remake_;
};

}  // namespace vt
