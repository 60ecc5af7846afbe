// The port on an NVIDIA GPU: an ordered device on CUDA's virtual memory.
//
// Covers: one allocation handle for each chunk, a home address for its copies, mappings at tensors' addresses, two copy streams,
// events as tickets, contexts on whatever thread calls.
// Leaves: everything driver.h leaves; which memory the chunks are (they may be donated, vtensor/pools.py).
//
// CUDA's rules that shape this file (driver API reference, "Virtual Memory Management"): a handle is mapped whole, from its
// beginning; an unmapping covers a whole mapping; nothing of this is ordered with streams, and unmapping does not wait. One
// handle may be mapped at several addresses if events order what uses them.
//
// Host places must be memory. What make_place makes is an allocation handle too, in the memory of the GPU's nearest node, mapped for the
// processor and the GPU; no other place can be mapped at device addresses.
// Thread-safety: all calls from any thread; mutex_ guards the tables, and no call waits for the device under it.
#pragma once

#include <deque>
#include <map>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "cuda/cuda_api.h"
#include "device/driver_ordered.h"

namespace vt {

// What a GPU is and can do; for `vtensor doctor` and for refusing what cannot work.
struct CudaDevice {
  int ordinal = 0;
  std::string name;
  Bytes total_bytes = 0;
  Bytes granularity = 0;  // smallest chunk
  bool virtual_memory = false;
  bool integrated = false;  // one memory for processor and GPU: moving data out frees nothing
  int host_node = -1;       // whose memory the driver says it can use in place, mapped like its own; -1 for none
  int driver_version = 0;   // 13000 for 13.0
};

// Throws InvalidUse if there is no such device.
CudaDevice probe_cuda(int ordinal, const char* library = nullptr);

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
  Status copy_out(ChunkId from, const HostPlace& to, Bytes bytes, Ticket* ticket) override;
  Status copy_in(const HostPlace& from, ChunkId to, Bytes bytes, Ticket* ticket) override;
  CopyState poll(Ticket ticket, int* error) override;
  void wait(Ticket ticket) override;
  LaneTimes times(Ticket::Lane lane) const override;
  Status adopt(void* stream, Ticket::Lane* lane) override;
  Status mark(Ticket::Lane lane, Ticket* ticket) override;
  Status order(Ticket::Lane later, Ticket earlier) override;
  Status stamp(Ticket::Lane lane) override;
  Status read_stamps(std::vector<std::uint64_t>* passed) override;
  LiveHandles live() const override;

 private:
  // The device's context, on the calling thread, while this lives. torch calls from many threads (autograd has one for each device),
  // each with a context of its own or none. Nor may a graph that is captured somewhere forbid us to look at our events.
  class Current {
   public:
    explicit Current(const CudaDriver& driver);
    ~Current();
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

   private:
    const CudaApi& api_;
    bool pushed_;
    CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  };

  struct Chunk {
    CUmemGenericAllocationHandle handle = 0;
    Address home = 0;
    bool exists = false, donated = false;
  };
  struct Pending {
    std::uint64_t number;
    CUevent begin, end;  // begin: of a copy, for its time; else nullptr
  };
  // A stream, and the events of its tickets that were not seen to be passed.
  struct Line {
    CUstream stream = nullptr;
    std::uint64_t issued = 0, passed = 0;
    std::deque<Pending> pending;
    double busy_ms = 0;
    bool broken = false;
  };

  Status check(const char* call, CUresult result) const;
  bool in_reservation(Address at, Bytes bytes) const;
  // Memory as described, mapped at an address of its own; and the end of it.
  Status make(const CUmemAllocationProp& what, std::span<const CUmemLocation> users, Chunk* made);
  void unmake(const Chunk& gone);
  std::vector<CUmemLocation> users_of_host() const;
  Line& line(Ticket::Lane lane) { return lines_[static_cast<std::size_t>(lane)]; }
  Status keep_events(std::size_t count);  // so many are at hand
  Status event(CUevent* event);
  Status record(Ticket::Lane lane, CUevent* event);
  Status issue(Ticket::Lane lane, CUevent begin, Ticket* ticket);
  Status copy(Ticket::Lane lane, ChunkId chunk, const HostPlace& place, Bytes bytes, Ticket* ticket);
  void collect(Line& line);

  const Bytes chunk_bytes_;
  const int ordinal_;
  const CudaApi& api_;
  const CUmemAllocationProp here_;
  std::vector<CUmemLocation> users_;  // of what is mapped: this device, and those that reach it (tensor.to() copies by their kernels)
  int host_node_ = -1;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;

  mutable std::mutex mutex_;
  std::size_t capacity_ = 0, existing_ = 0;
  std::vector<Chunk> chunks_;
  std::vector<ChunkId> unused_;    // indices of chunks_ that are nothing now
  std::vector<Address> donated_;   // homes of donated chunks not in use
  std::map<Address, Bytes> reservations_;
  std::unordered_map<Address, ChunkId> mapped_;
  std::unordered_map<Address, Chunk> places_;  // by their own addresses
  std::unordered_set<Address> host_mapped_;
  std::deque<Line> lines_;         // by lane; references stay valid
  std::unordered_map<void*, Ticket::Lane> adopted_;
  std::vector<CUevent> stamps_;
  std::vector<CUevent> events_;    // to be used again
};

}  // namespace vt
