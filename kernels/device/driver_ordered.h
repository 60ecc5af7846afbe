// What follows from a device being ordered (driver.h), whatever it is made of.
//
// Covers: one chunk as a run of one; nothing to protect, as nothing faults; copies that end by themselves.
// Leaves: the devices: driver_cuda.h, and for tests driver_late.h and driver_model.h.
#pragma once

#include "device/driver.h"

namespace vt {

class OrderedDriver : public Driver {
 public:
  Status map(Address at, ChunkId chunk, Access access) final {
    return access == Access::none ? Status{Code::illegal, "map", 0} : map_run(at, {&chunk, 1});
  }
  Status unmap(Address at) final { return unmap_run(at, 1); }
  Status protect(Address, Access) final { return {Code::illegal, "protect", 0}; }

  Status map_run(Address at, std::span<const ChunkId> chunks) override = 0;
  Status unmap_run(Address at, std::size_t chunks) override = 0;
  Status map_host(Address, const HostPlace&) override { return {Code::failed, "map_host", 0}; }
  Status unmap_host(Address) override { return {Code::illegal, "unmap_host", 0}; }

  bool ordered() const noexcept final { return true; }
  Status adopt(void* stream, Ticket::Lane* lane) override = 0;
  Status mark(Ticket::Lane lane, Ticket* ticket) override = 0;
  Status order(Ticket::Lane later, Ticket earlier) override = 0;
  Status stamp(Ticket::Lane lane) override = 0;
  Status read_stamps(std::vector<std::uint64_t>* passed) override = 0;

  // What a device was asked to copy cannot be called back.
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
