// The port on an NVIDIA GPU: an ordered device on CUDA's virtual memory.
//
// Covers: one allocation handle for each chunk, mapped at home (for copies that name no address), mappings at tensors' addresses,
// two copy streams, events as tickets, contexts on whatever thread calls.
// Leaves: everything driver.h leaves; which memory the chunks are (they may be donated, vtensor/devices/pools.py).
//
// CUDA's rules that shape this file (driver API reference, "Virtual Memory Management"): a handle is mapped whole, from its
// beginning; an unmapping covers a whole mapping; nothing of this is ordered with streams, and unmapping does not wait. One
// handle may be mapped at several addresses if events order what uses them.
//
// Host places must be memory. What make_place makes is an allocation handle too, in the memory of the GPU's nearest node, mapped
// for the processor and the GPU; no other place can be mapped at device addresses. Thread-safety: all calls from any thread;
// mutex_ guards the tables, and no call waits for the device under it.
#pragma once

#include <map>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "cuda/cuda_lanes.h"
#include "device/driver_ordered.h"

namespace vt {

class CudaDriver final : public OrderedDriver {
 public:
  // Throws InvalidUse if the device cannot do it, with what would help.
  // `places`: memory of the host may be used in place where the driver says that it can.
  CudaDriver(Bytes chunk_bytes, int ordinal, const char* library = nullptr, bool places = true);
  ~CudaDriver() override;

  // Chunks from elsewhere (a CuPy pool), by the address where they are mapped whole. create() takes them first. Pre: they stay
  // mapped there until taken back.
  Status donate(Address home);
  // Gives a donated chunk that is not in use back to its owner; 0 if there is none.
  Address take_back();

  Bytes chunk_bytes() const noexcept override { return chunk_bytes_; }
  Status reserve(Bytes bytes, Address* base) override;
  Status release(Address base) override;
  Status set_capacity(std::size_t chunks) override;
  Status create(ChunkId* chunk) override;
  Status destroy(ChunkId chunk) override;
  Status map_run(Address at, std::span<const ChunkId> chunks) override;
  Status unmap_run(Address at, std::size_t chunks) override;
  Status make_place(HostPlace* place) override;
  Status drop_place(const HostPlace& place) override;
  Status map_host(Address at, const HostPlace& place) override;
  Status unmap_host(Address at) override;
  Status copy_at(Lane lane, Address at, ChunkId chunk, const HostPlace& place, Bytes bytes, Ticket* ticket) override;
  void go() override { lanes_.go(); }
  CopyState poll(Ticket ticket, int* error) override { return lanes_.poll(ticket, error); }
  void wait(Ticket ticket) override { lanes_.wait(ticket); }
  LaneTimes times(Lane lane) const override { return lanes_.times(lane); }
  Status adopt(void* stream, Lane* lane) override { return lanes_.adopt(stream, lane); }
  Status mark(Lane lane, Ticket* ticket) override { return lanes_.mark(lane, ticket); }
  Status order(Lane later, Ticket earlier) override { return lanes_.order(later, earlier); }
  Status stamp(Lane lane) override { return lanes_.stamp(lane); }
  Status read_stamps(std::vector<std::uint64_t>* passed) override { return lanes_.read_stamps(passed); }
  LiveHandles live() const override;

 private:
  struct Chunk {
    CUmemGenericAllocationHandle handle = 0;
    Address home = 0;
    bool exists = false, donated = false;
  };
  // Memory as described, mapped at an address of its own; and the end of it.
  Status make(const CUmemAllocationProp& what, std::span<const CUmemLocation> users, Chunk* made);
  void unmake(const Chunk& gone);

  const Bytes chunk_bytes_;
  const CudaApi& api_;
  const CUmemAllocationProp here_;
  const CudaDevice device_;
  const CudaContext context_;
  CudaLanes lanes_;
  // Of what is mapped: this device, and those that reach it (tensor.to() copies by their kernels).
  std::vector<CUmemLocation> users_;
  int host_node_ = -1;                // whose memory is used in place; -1 for none

  mutable std::mutex mutex_;
  std::size_t capacity_ = 0, existing_ = 0;
  std::vector<Chunk> chunks_;
  std::vector<ChunkId> unused_;    // indices of chunks_ that are nothing now
  std::vector<Address> donated_;   // homes of donated chunks not in use
  std::map<Address, Bytes> reservations_;
  std::unordered_map<Address, ChunkId> mapped_;
  std::unordered_map<Address, Chunk> places_;  // by their own addresses
  std::unordered_set<Address> host_mapped_;
};

}  // namespace vt
