// The port to an ordered device (driver.h): one whose work goes on after the call that asked for it.
//
// Covers: runs of chunks, memory of the host that the device uses in place, streams and the order of their work; and what follows
// from a device being ordered, whatever it is made of.
// Leaves: who comes after whom (order/stream_order.h). Implementations: driver_cuda.h, and for tests driver_late.h and
// driver_model.h.
#pragma once

#include <span>
#include <vector>

#include "device/driver.h"

namespace vt {

class OrderedDriver : public Driver {
 public:
  // --- runs of chunks --------------------------------------------------------------------------------------
  // Maps chunks for writing at consecutive addresses, as map does, all or none. Costs little more than mapping one.
  virtual Status map_run(Address at, std::span<const ChunkId> chunks) = 0;
  // Unmaps so many at consecutive addresses, as unmap does, all or none.
  virtual Status unmap_run(Address at, std::size_t chunks) = 0;

  // --- copies of what lies side by side --------------------------------------------------------------------------
  // A copy, out to `place` or back, of a chunk to which `at` leads, and to no other before the copy is done; where that is 0,
  // wherever the chunk is. Those that follow each other on their lane side by side, there and in the host's memory, may be one;
  // it begins at the latest when something else is asked of the lane, or with go().
  virtual Status copy_at(Lane lane, Address at, ChunkId chunk, const HostPlace& place, Bytes bytes, Ticket* ticket) = 0;
  // Nothing follows side by side now.
  virtual void go() {}

  // --- memory of the host that the device uses in place ------------------------------------------------------
  // Memory for one chunk that map_host takes, and that the processor reads and writes too. failed where there is none to be had.
  virtual Status make_place(HostPlace* /*place*/) { return {Code::failed, "make_place", 0}; }
  // Pre: not mapped at device addresses, no copy under way.
  virtual Status drop_place(const HostPlace& /*place*/) { return illegal("drop_place"); }

  // --- order (poll and wait serve these tickets too) -----------------------------------------------------------
  // The lane of a stream that computes, by the device's own name for it. The same stream gets the same lane.
  virtual Status adopt(void* stream, Lane* lane) = 0;
  // Ends the work asked of a lane so far with a ticket, the next of the lane.
  virtual Status mark(Lane lane, Ticket* ticket) = 0;
  // What is asked of `later` from now on begins when `earlier` is passed. Never waits.
  virtual Status order(Lane later, Ticket earlier) = 0;
  // Keeps the moment at which what was asked of a lane so far is done, by the device's clock.
  virtual Status stamp(Lane lane) = 0;
  // Nanoseconds from the first moment kept to each, 0 for earlier ones, and forgets them all. Pre: all are passed.
  virtual Status read_stamps(std::vector<std::uint64_t>* passed) = 0;

  // --- what follows ----------------------------------------------------------------------------------------
  OrderedDriver* ordered() noexcept final { return this; }
  // One chunk is a run of one, and as nothing faults there is nothing to protect.
  Status map(Address at, ChunkId chunk, Access access) final {
    return access == Access::none ? illegal("map") : map_run(at, {&chunk, 1});
  }
  Status unmap(Address at, Door = Door::closed) final { return unmap_run(at, 1); }
  Status protect(Address, Access) final { return illegal("protect"); }
  Status copy_out(ChunkId from, const HostPlace& to, Bytes bytes, Ticket* ticket) final {
    return copy_at(Lane::out, 0, from, to, bytes, ticket);
  }
  Status copy_in(const HostPlace& from, ChunkId to, Bytes bytes, Ticket* ticket) final {
    return copy_at(Lane::in, 0, to, from, bytes, ticket);
  }
  Status map_host(Address, const HostPlace&) override { return {Code::failed, "map_host", 0}; }
  Status unmap_host(Address) override { return illegal("unmap_host"); }
  // What a device was asked to copy cannot be called back, and ends by itself.
  CopyState cancel(Ticket ticket) final {
    wait(ticket);
    return poll(ticket, nullptr);
  }
  void retire(Ticket) final {}  // a ticket names a point; nothing is kept for it
  // A child of fork cannot use the device, whatever is done here.
  void before_fork() final {}
  void after_fork(bool) final {}
};

}  // namespace vt
