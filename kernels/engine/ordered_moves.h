// Moves on a device whose work goes on after the call that asked for it (a GPU). See moves.h and fences.h.
//
// Covers: moves.h: no thread stands for a copy, the device does. Requires: the lock.
#pragma once

#include "engine/moves.h"
#include "engine/ordered_slots.h"

namespace vt {

class OrderedMoves final : public Moves {
 public:
  OrderedMoves(Ground& ground, RangeTable& ranges, Roster& roster, Chunks& chunks, ChunkPool& pool, CopyEngine& copies,
               Fences& fences, OrderedMappings& mappings, Slots& slots)
      : Moves(ground, copies),
        ranges_(ranges),
        roster_(roster),
        chunks_(chunks),
        pool_(pool),
        fences_(fences),
        order_(fences.order()),
        mappings_(mappings),
        slots_(slots) {}

  // Who has an address may use it on any stream. What no operation had as an argument may be a workspace: nobody would bring it
  // back.
  bool may_leave(const Range& range) const override { return !range.fixed && !range.exported && range.seen.load(); }
  Status leave(Range& range, std::uint32_t index) override;
  Status arrive(Range& range, std::uint32_t index, ChunkId chunk) override;
  Status drop(Range& range, std::uint32_t index) override;
  void hand_over(Range& from, Range& to) override;
  Status before_arrivals(Range& range, std::uint32_t first, std::span<const ChunkId> chunks) override {
    return mappings_.lead_to(range, first, chunks);
  }
  void stay(Range&, std::uint32_t) override { fatal("a vTensor was found leaving on an ordered device"); }
  void cancel(Range&, std::uint32_t) override { fatal("a vTensor was found between places on an ordered device"); }
  void glance() override;
  void reap() override;
  void catch_up(Lock&) override {}
  std::size_t coming_free() const override { return 0; }
  bool wait_for_room(Lock&, const Status&) override { return false; }
  void quiesce(Lock& lock) override;
  bool needs_pump() const override { return false; }
  void give_away(Lock& lock, Range& range, const std::function<void()>& bring) override;
  void bring_all(Lock& lock, const RangeTable& ranges, const std::function<Status(Range&, std::uint32_t)>& beyond) override;
  bool may_overdraw() const override { return true; }
  bool reachable() const override { return !ground_.forked; }

 private:
  // Strict: the address leads nowhere while its data is away, so that whoever reads it unseen fails, instead of reading what
  // another put there. Waits for what still uses it.
  void close(Range& range, std::uint32_t index);
  void repay();

  RangeTable& ranges_;
  Roster& roster_;
  Chunks& chunks_;
  ChunkPool& pool_;
  Fences& fences_;
  StreamOrder& order_;
  OrderedMappings& mappings_;
  Slots& slots_;
  std::uint32_t glances_ = 0;
};

}  // namespace vt
