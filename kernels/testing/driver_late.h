// An ordered device in ordinary memory whose work happens late (late_work.h), for tests: no GPU is needed to see a missing wait.
//
// Covers: the port of driver.h for ordered devices, with complaints about unmapping and destroying in flight.
// Leaves: CUDA's own ways (driver_cuda.h), speed.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "device/driver_ordered.h"
#include "testing/late_work.h"

namespace vt {

// What the streams that compute do. late: their work is items of LateWork, as a GPU's kernels are. at_once: the calling thread
// computes itself, as torch does on a processor; an order for a stream is then waited for on the spot, and only copies are late.
enum class Compute : std::uint8_t { late, at_once };

class LateDriver final : public OrderedDriver {
 public:
  // `work` outlives the driver, which is the engine's. `places`: whether it uses memory of the host in place.
  LateDriver(Bytes chunk_bytes, std::size_t most_chunks, LateWork& work, Compute streams = Compute::late, bool places = false);
  ~LateDriver() override;

  Bytes chunk_bytes() const noexcept override { return chunk_bytes_; }
  Status reserve(Bytes bytes, Address* base) override;
  Status release(Address base) override;
  Status set_capacity(std::size_t chunks) override;
  Status create(ChunkId* chunk) override;
  Status destroy(ChunkId chunk) override;
  Status map_run(Address at, std::span<const ChunkId> chunks) override;
  Status unmap_run(Address at, std::size_t chunks) override;
  Status map_host(Address at, const HostPlace& place) override;
  Status unmap_host(Address at) override;
  Status make_place(HostPlace* place) override;
  Status drop_place(const HostPlace& place) override;
  Status copy_at(Lane lane, Address at, ChunkId chunk, const HostPlace& place, Bytes bytes, Ticket* ticket) override;
  CopyState poll(Ticket ticket, int* error) override;
  void wait(Ticket ticket) override;
  LaneTimes times(Lane) const override { return {}; }
  Status adopt(void* stream, Lane* lane) override;
  Status mark(Lane lane, Ticket* ticket) override;
  Status order(Lane later, Ticket earlier) override;
  Status stamp(Lane lane) override;
  Status read_stamps(std::vector<std::uint64_t>* passed) override;
  LiveHandles live() const override;

 private:
  ChunkId place_of(const void* memory) const;
  void forget(ChunkId chunk);
  Status map_one(Address at, ChunkId chunk);
  Status unmap_one(Address at);
  Status issue(Lane lane, LateWork::Point end, Ticket* ticket);

  const Bytes chunk_bytes_;
  const std::size_t most_;
  LateWork& work_;
  const Compute kind_;
  const bool offers_places_;
  mutable std::mutex mutex_;
  int file_ = -1;
  char* home_ = nullptr;  // chunk by chunk
  std::size_t capacity_ = 0;
  std::vector<ChunkId> unused_;
  std::set<ChunkId> existing_, places_;  // of the same memory
  std::map<Address, std::uint64_t> mapped_;
  std::map<Address, Bytes> reservations_;
  std::map<void*, Lane> streams_;
  std::vector<std::vector<LateWork::Point>> tickets_;  // by lane
  std::shared_ptr<std::vector<std::uint64_t>> stamps_ = std::make_shared<std::vector<std::uint64_t>>();
};

}  // namespace vt
