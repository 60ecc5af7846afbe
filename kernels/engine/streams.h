// What streams of an ordered device are asked for, as the observer tells it: part of the engine's front.
//
// Covers: naming a stream, waiting for data, noting uses, timing rows.
// Leaves: what follows from a use (fences.h).
// Thread-safety: every call may come from any thread; each takes the engine's lock where it needs it. Immediate devices have none
// of this (Engine::streams() is nullptr there).
#pragma once

#include "engine/fences.h"
#include "engine/range_table.h"

namespace vt {

class Streams {
 public:
  // `closed`: the device is gone.
  Streams(std::mutex& mutex, const std::atomic<bool>& closed, Ground& ground, RangeTable& ranges, Fences& fences)
      : mutex_(mutex), closed_(closed), ground_(ground), ranges_(ranges), fences_(fences), order_(fences.order()) {}

  // The lane of a stream, by the device's own name for it.
  Lane lane(void* native, bool foreign = false);
  // What `stream` does from now on finds the data of a pinned range in place.
  void ready_on(Lane stream, Range& range) {
    range.seen.store(true, std::memory_order_relaxed);
    const std::uint64_t ready = range.ready.load();
    if (!order_.waited_for(stream, ready)) come_after(stream, Ticket{Lane::in, ready});
    const Ticket maker = Fences::maker(range);
    if (maker.number != 0 && maker.lane != stream) come_after(stream, maker);
    if (stream != range.home && !range.before.empty()) come_after(stream, range.before);
  }
  // An operation has been asked of `stream`: before anybody is told what it made.
  void used(Lane stream) noexcept { order_.used(stream); }
  // It pinned the range. Before Engine::unpin().
  void used_on(Lane stream, Range& range) noexcept;
  // What makes something again is about to be asked of `stream`. What it reads may have been written on another, and nobody else
  // sees to it that it comes after that.
  void makes_again(Lane stream);
  // It was, and reads the range: nor does anybody see to it that whoever writes that on another stream comes after it.
  void read_again(Lane stream, Range& range);
  bool is_foreign(Lane stream) const noexcept { return order_.is_foreign(stream); }
  // An operation has been asked of `stream`, and its uses are told.
  void pulse(Lane stream);
  // A graph is about to be captured on some stream.
  void before_capture() {
    Lock lock(mutex_);
    if (!closed_) order_.mark_streams();
  }
  // What `stream` was asked for when the tensor is freed may still use it (torch's record_stream). Pre: live.
  void record(const void* address, Lane stream);

  // Rows are timed from now on until they are read. `ahead`: the host is ahead of the device.
  void start_timing(bool ahead);
  // A row begins with what `stream` is asked for next. While rows are timed.
  void row_begins(Lane stream);
  // Nanoseconds from the first row to each, and until now; empty if the device did not tell. Stands until all that was asked is
  // done.
  std::vector<std::uint64_t> row_times();

  // Times a thread stood until the device had done something. Requires the lock.
  std::uint64_t waits() const noexcept { return order_.waits(); }

 private:
  void come_after(Lane later, Ticket earlier);
  void come_after(Lane later, const Fence& fence);

  std::mutex& mutex_;
  const std::atomic<bool>& closed_;
  Ground& ground_;
  RangeTable& ranges_;
  Fences& fences_;
  StreamOrder& order_;
};

}  // namespace vt
