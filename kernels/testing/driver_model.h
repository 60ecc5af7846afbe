// An ordered device of arithmetic alone: a GPU whose kernels, copies and calls take the times a test gives them.
//
// Covers: the port of driver.h for ordered devices over a clock that only this device moves; there is no memory behind its
// addresses, and copies copy nothing. What the engine asks for, in which order and whom it lets wait, is real.
// Leaves: whether data is right (driver_late.h). For tests: module_replay.cpp runs recorded iterations on it.
// Thread-safety: none.
#pragma once

#include <deque>
#include <map>
#include <set>
#include <vector>

#include "device/driver_ordered.h"

namespace vt {

// Nanoseconds of the thread that calls, and bytes a second of the lanes.
struct ModelCosts {
  std::uint64_t call = 0;   // an event, a wait, a copy asked for
  std::uint64_t map = 0;    // a run of chunks, and as much to unmap one
  std::uint64_t piece = 0;  // each chunk of it
  double out_speed = 1, in_speed = 1;
  std::size_t room = 0;     // things asked of a lane that are still to be done; who asks for one more stands. 0: endless
};

class ModelDriver final : public OrderedDriver {
 public:
  ModelDriver(Bytes chunk_bytes, const ModelCosts& costs) : chunk_bytes_(chunk_bytes), costs_(costs), lanes_(2) {}

  // A kernel that takes so long, after all that its stream comes after.
  void compute(Lane stream, std::uint64_t ns);
  // The calling thread is busy for so long.
  void spend(std::uint64_t ns) { now_ += ns; }
  // The calling thread waits for a stream, as `loss.item()` does.
  void join(Lane stream);
  // The calling thread's time.
  std::uint64_t now() const noexcept { return now_; }

  Bytes chunk_bytes() const noexcept override { return chunk_bytes_; }
  Status reserve(Bytes bytes, Address* base) override;
  Status release(Address base) override;
  Status set_capacity(std::size_t chunks) override;
  Status create(ChunkId* chunk) override;
  Status destroy(ChunkId chunk) override;
  Status map_run(Address at, std::span<const ChunkId> chunks) override;
  Status unmap_run(Address at, std::size_t chunks) override;
  Status copy_at(Lane lane, Address at, ChunkId chunk, const HostPlace& place, Bytes bytes, Ticket* ticket) override;
  CopyState poll(Ticket ticket, int* error) override;
  void wait(Ticket ticket) override;
  LaneTimes times(Lane lane) const override { return {lanes_.at(number(lane)).busy, 0}; }
  Status adopt(void* stream, Lane* lane) override;
  Status mark(Lane lane, Ticket* ticket) override;
  Status order(Lane later, Ticket earlier) override;
  Status stamp(Lane lane) override;
  Status read_stamps(std::vector<std::uint64_t>* passed) override;
  LiveHandles live() const override { return {reservations_.size(), existing_.size(), mapped_.size(), 0, 0}; }

 private:
  struct Line {
    std::uint64_t end = 0;             // of what it was asked for so far
    std::uint64_t after = 0;           // and of what it has to come after
    std::uint64_t busy = 0;
    std::vector<std::uint64_t> ends;   // by ticket
    std::deque<std::uint64_t> queue;   // when each thing is done that was asked of it, oldest first
  };

  static std::size_t number(Lane lane) noexcept { return static_cast<std::size_t>(lane); }
  std::uint64_t reached(Lane lane) const;  // when all it was asked for is done
  void make_room(Lane lane);
  void enter(Lane lane) { lanes_.at(number(lane)).queue.push_back(reached(lane)); }
  void work(Lane lane, std::uint64_t ns);
  std::uint64_t end_of(Ticket ticket) const { return lanes_.at(number(ticket.lane)).ends.at(ticket.number - 1); }

  const Bytes chunk_bytes_;
  const ModelCosts costs_;
  std::uint64_t now_ = 0;
  std::size_t capacity_ = 0;
  Address next_ = Address{1} << 40;
  std::vector<Line> lanes_;
  std::vector<std::uint64_t> stamps_;
  std::set<ChunkId> existing_;
  std::map<Address, ChunkId> mapped_;
  std::set<Address> reservations_;
  std::map<void*, Lane> streams_;
};

}  // namespace vt
