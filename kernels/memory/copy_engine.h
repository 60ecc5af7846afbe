// The two copy lanes as the engine sees them: jobs in order, each naming the vTensor it moves.
//
// Covers: starting, cancelling and collecting copies; counting bytes each way.
// Leaves: moving the bytes (the driver's lanes) and what a finished copy means (engine/moves.h).
// Thread-safety: the engine's lock guards it, except for wait(), which is called without the lock.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <optional>

#include "device/driver_ordered.h"
#include "memory/range.h"

namespace vt {

struct CopyJob {
  Ticket ticket;
  Range* range = nullptr;
  std::uint32_t index = 0;
  Bytes bytes = 0;
  CopyState state = CopyState::pending;
  int error = 0;
};

class CopyEngine {
 public:
  explicit CopyEngine(Driver& driver) : driver_(driver) {}

  // Start moving vTensor `index` of `range` between its chunk and `place`. The ticket is kept in the vTensor.
  Status start(Lane lane, Range& range, std::uint32_t index, const HostPlace& place, Bytes bytes);
  // On an ordered device, where `at` leads to the chunk: ask for a copy that nobody collects by hand; `range` of the collected
  // job is null.
  Status start_in_order(Lane lane, Address at, ChunkId chunk, const HostPlace& place, Bytes bytes, Ticket* ticket);
  // What was asked for begins, whatever might follow side by side.
  void go() {
    if (OrderedDriver* driver = driver_.ordered()) driver->go();
  }
  // The next copy of the lane that ended and was not yet collected, in order; nothing if it is still under way.
  std::optional<CopyJob> collect(Lane lane);
  // Ends the copy of a vTensor early and forgets it. Returns how it ended.
  CopyState cancel(VTensor& part);

  // The copy of the lane that will end first; nothing if the lane is empty.
  std::optional<Ticket> oldest(Lane lane) const;
  void wait(Ticket ticket) { driver_.wait(ticket); }

  // Whether a copy began since hands were lent last (Hands::between); read without the lock.
  bool wants_hands() const noexcept { return wants_hands_.load(std::memory_order_relaxed); }
  bool take_wish() noexcept { return wants_hands_.exchange(false, std::memory_order_relaxed); }

  bool idle() const noexcept { return queues_[0].empty() && queues_[1].empty(); }
  std::size_t under_way(Lane lane) const noexcept { return queue(lane).size(); }
  Bytes moved(Lane lane) const noexcept { return moved_[index_of(lane)]; }
  std::size_t done(Lane lane) const noexcept { return done_[index_of(lane)]; }

 private:
  static constexpr std::size_t index_of(Lane lane) noexcept { return lane == Lane::out ? 0 : 1; }
  const std::deque<CopyJob>& queue(Lane lane) const noexcept { return queues_[index_of(lane)]; }

  Status ask(Lane lane, ChunkId chunk, const HostPlace& place, Bytes bytes, Ticket* ticket);

  Driver& driver_;
  std::atomic<bool> wants_hands_{false};
  std::array<std::deque<CopyJob>, 2> queues_;
  std::array<Bytes, 2> moved_{};
  std::array<std::size_t, 2> done_{};
};

}  // namespace vt
