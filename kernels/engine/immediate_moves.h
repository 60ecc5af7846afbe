// Moves that a thread waits for. See moves.h.
//
// A leaving vTensor's address is closed, so that nobody changes what is copied; whoever touches it cancels the copy.
// Covers: moves.h. Requires: the lock.
#pragma once

#include "engine/chunks.h"
#include "engine/moves.h"
#include "engine/slots.h"

namespace vt {

class ImmediateMoves final : public Moves {
 public:
  ImmediateMoves(Ground& ground, Roster& roster, Chunks& chunks, ChunkPool& pool, Slots& slots, CopyEngine& copies)
      : Moves(ground, copies), roster_(roster), chunks_(chunks), pool_(pool), slots_(slots) {}

  bool may_leave(const Range& range) const override { return !range.stays(); }
  Status leave(Range& range, std::uint32_t index) override;
  Status arrive(Range& range, std::uint32_t index, ChunkId chunk) override;
  Status drop(Range& range, std::uint32_t index) override;
  void hand_over(Range& from, Range& to) override;
  Status before_arrivals(Range&, std::uint32_t, std::span<const ChunkId>) override { return kOk; }
  void stay(Range& range, std::uint32_t index) override;
  void cancel(Range& range, std::uint32_t index) override;
  void glance() override { reap(); }
  void reap() override;
  void catch_up(Lock& lock) override;
  std::size_t coming_free() const override { return copies_.under_way(Lane::out); }
  bool wait_for_room(Lock& lock, const Status& why) override;
  void quiesce(Lock&) override {}
  bool needs_pump() const override { return ground_.driver.hands() != Hands::in_wait; }
  void give_away(Lock& lock, Range& range, const std::function<void()>& bring) override;
  void bring_all(Lock& lock, const RangeTable& ranges, const std::function<Status(Range&, std::uint32_t)>& beyond) override;
  bool may_overdraw() const override { return false; }
  bool reachable() const override { return true; }

 private:
  Status leave_for_free(Range& range, std::uint32_t index);
  Status leave_by_copy(Range& range, std::uint32_t index);
  void after_copy_out(const CopyJob& job);
  void after_copy_in(const CopyJob& job);
  Status map(const Range& range, std::uint32_t index);
  void map_back(const Range& range, std::uint32_t index);
  void keep_mapped(Range& range, std::uint32_t index);  // where it waits, if its address was given away

  Roster& roster_;
  Chunks& chunks_;
  ChunkPool& pool_;
  Slots& slots_;
  std::size_t exported_leaving_ = 0;  // unmapped although their addresses were given away, until their copies are done
};

}  // namespace vt
