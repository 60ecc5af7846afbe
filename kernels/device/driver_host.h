// The port on this machine's own memory: a device that exists everywhere, and is stricter than a GPU.
//
// Covers: chunks as private anonymous memory, moved between a home address and tensors' addresses by mremap(2);
// two copy lanes with an optional speed; the rules of driver.h, checked on every call.
// Leaves: everything driver.h leaves.
//
// Why mremap and private memory, and not a memfd mapped in two places: a move takes 3-8 us and carries the page
// tables along (no fault afterwards), huge pages stay huge, resident memory is counted once, and fork() gives a
// child its own copy. DESIGN.md has the figures.
#pragma once

#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "device/driver.h"
#include "device/host_lane.h"
#include "device/lingering.h"

namespace vt {

class HostDriver final : public Driver {
 public:
  // chunk_bytes: power of two, at least a page. link_bytes_per_second: speed of each direction, 0 for no limit. `team`: whose
  // threads move bytes (host_lane.h); null for a thread of each lane. Throws InvalidUse for other sizes, or on a kernel
  // without MREMAP_DONTUNMAP (Linux before 5.7).
  HostDriver(Bytes chunk_bytes, double link_bytes_per_second, Team team = nullptr);
  ~HostDriver() override;

  Bytes chunk_bytes() const noexcept override { return chunk_bytes_; }
  Hands hands() const noexcept override { return in_.hands(); }
  Status reserve(Bytes bytes, Address* base) override;
  Status release(Address base) override;
  Status set_capacity(std::size_t chunks) override;
  Status create(ChunkId* chunk) override;
  Status destroy(ChunkId chunk) override;
  Status map(Address at, ChunkId chunk, Access access) override;
  Status protect(Address at, Access access) override;
  Status unmap(Address at, Door door = Door::closed) override;
  Status map_host(Address at, const HostPlace& place) override;
  Status unmap_host(Address at) override;
  Status copy_out(ChunkId from, const HostPlace& to, Bytes bytes, Ticket* ticket) override;
  Status copy_in(const HostPlace& from, ChunkId to, Bytes bytes, Ticket* ticket) override;
  CopyState poll(Ticket ticket, int* error) override;
  void wait(Ticket ticket) override;
  void lend_hands() override;
  CopyState cancel(Ticket ticket) override;
  void retire(Ticket ticket) override;
  LaneTimes times(Lane which) const override { return (which == Lane::out ? out_ : in_).times(); }
  void before_fork() override;
  void after_fork(bool in_child) override;
  LiveHandles live() const override;

 private:
  struct Chunk {
    Address home = 0;       // where its pages lie while it is unmapped, and does not linger (lingering.h)
    Address mapped_at = 0;  // 0 while unmapped
    bool exists = false;
    Ticket last_copy;
  };
  struct Mapping {
    ChunkId chunk;
    Access access;
  };
  struct Reservation {
    Bytes bytes;  // as asked for
    void* raw;    // as given by mmap, before alignment
    Bytes raw_bytes;
  };

  bool free_address(Address at) const;
  bool idle(const Chunk& chunk);
  Chunk* find(ChunkId chunk);
  HostLane& lane(Lane which) { return which == Lane::out ? out_ : in_; }
  Status copy(Lane which, ChunkId chunk, const HostPlace& place, Bytes bytes, Ticket* ticket);

  const Bytes chunk_bytes_;
  mutable std::mutex mutex_;  // guards what follows; taken before a lane's mutex
  std::size_t capacity_ = 0;
  std::size_t existing_ = 0;
  std::vector<Chunk> chunks_;
  std::vector<ChunkId> unused_;  // indices of chunks_ that do not exist now
  std::map<Address, Reservation> reservations_;
  std::vector<Reservation> homes_;
  std::unordered_map<Address, Mapping> mapped_;
  Lingering lingering_{chunk_bytes_};
  std::unordered_map<Address, HostPlace> host_mapped_;
  HostLane out_;
  HostLane in_;
};

}  // namespace vt
