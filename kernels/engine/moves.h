// Data between chunks and the host store: how a vTensor leaves and arrives, and what waiting for it means.
//
// On an *immediate* device (driver.h) a copy is under way until somebody finds that it has ended: the vTensor is leaving or
// arriving meanwhile, and a thread that needs it waits, with the lock released. On an *ordered* one it is absent as soon as its
// copy out is asked for, and resident as soon as its copy in is: what waits is the device.
//
// Every step either happens whole or leaves what it found (I6), and data is dropped in one place only after it is valid in
// another (I2).
//
// Covers: the steps, and their ends.
// Leaves: who leaves (eviction.h), with which chunk to arrive (supply.h), when (uses.h, arrivals.h).
// Implementations: immediate_moves.h, ordered_moves.h. tests/native/kind_contract.cpp holds both to what is said here.
// Requires: the lock.
#pragma once

#include <functional>
#include <span>

#include "engine/range_table.h"
#include "memory/copy_engine.h"

namespace vt {

class Moves {
 public:
  Moves(Ground& ground, CopyEngine& copies) : ground_(ground), copies_(copies) {}
  virtual ~Moves() = default;
  Moves(const Moves&) = delete;
  Moves& operator=(const Moves&) = delete;

  // Whether anything of the range may leave at all, whoever wants it to.
  virtual bool may_leave(const Range& range) const = 0;
  // Pre: resident, unpinned, already counted in `missing`. Its chunk is free now, or when its copy has ended.
  virtual Status leave(Range& range, std::uint32_t index) = 0;
  // Pre: absent or borrowed, the chunk is taken. On success the vTensor owns the chunk, else the caller still does.
  virtual Status arrive(Range& range, std::uint32_t index, ChunkId chunk) = 0;
  // A vTensor leaves without a copy: a recipe makes it again. Pre: resident and already counted in `missing`, or absent.
  virtual Status drop(Range& range, std::uint32_t index) = 0;
  // What was recomputed in `from` is the data of `to` wherever that is dropped: chunks change hands, and no byte moves. Pre: of
  // the same size; `from` is pinned, resident or borrowed.
  virtual void hand_over(Range& from, Range& to) = 0;
  // What is about to arrive side by side: where mapping comes before copying, it is done here by one call.
  virtual Status before_arrivals(Range& range, std::uint32_t first, std::span<const ChunkId> chunks) = 0;
  // A leaving vTensor is resident again.
  virtual void stay(Range& range, std::uint32_t index) = 0;
  // The copy of a vTensor of a dead tensor is given up.
  virtual void cancel(Range& range, std::uint32_t index) = 0;

  // What has ended takes effect.
  virtual void reap() = 0;
  // The same, at once where somebody stands for it, else when it is worth asking.
  virtual void glance() = 0;
  // Before a chunk is taken: what a thread would have to wait for takes effect, and what others may read at any moment is there.
  virtual void catch_up(Lock& lock) = 0;
  // Chunks that copies under way will free.
  virtual std::size_t coming_free() const = 0;
  // Stands until one of them may be, or until something that came may leave again; `why` nothing leaves now. False if
  // nothing is under way.
  virtual bool wait_for_room(Lock& lock, const Status& why) = 0;
  // Nothing is under way any more.
  void settle(Lock& lock);
  // Nothing that was ever asked of the device goes on: chunks can be destroyed.
  virtual void quiesce(Lock& lock) = 0;
  // Whether a thread must start planned arrivals as copies end (arrivals.h).
  virtual bool needs_pump() const = 0;

  // Whoever got the address may read there at any moment: the data is there, also while nobody observes. `bring` makes
  // all of the range resident or borrowed.
  virtual void give_away(Lock& lock, Range& range, const std::function<void()>& bring) = 0;
  // Nobody will observe operations any more, so nothing live may be away. `beyond` brings a vTensor, with more chunks than the
  // budget if need be. Throws OutOfMemory, and goes on, if the device cannot hold it all.
  virtual void bring_all(Lock& lock, const RangeTable& ranges,
                         const std::function<Status(Range&, std::uint32_t)>& beyond) = 0;
  // Whether more chunks than the budget may stand in for memory of the host that cannot be used in place.
  virtual bool may_overdraw() const = 0;
  // False in a child that cannot ask the device.
  virtual bool reachable() const = 0;

  // Waits for a ticket with the lock released. `exposed`: an operation or an allocation stands.
  void wait_for(Lock& lock, Ticket ticket, bool exposed = true);
  // Copies out that failed so far, and why the newest copy did: whoever sees more than a few in one call gives up.
  std::uint64_t failed() const noexcept { return failed_; }
  const Status& last_failure() const noexcept { return last_failure_; }

 protected:
  Ground& ground_;
  CopyEngine& copies_;
  Status last_failure_;
  std::uint64_t failed_ = 0;
};

}  // namespace vt
