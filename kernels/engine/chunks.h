// Chunks in the hands of vTensors: who holds which, who left it last, how many were in use at most.
//
// Covers: the swapped-by edges (the vTensor that left a chunk -> the one that got it), the peak of use.
// Leaves: which chunks are free (chunk_pool.h), making room (supply.h), what is mapped where (mappings.h).
// Requires: the lock.
#pragma once

#include <algorithm>
#include <vector>

#include "engine/ground.h"
#include "memory/chunk_pool.h"

namespace vt {

class Chunks {
 public:
  Chunks(Ground& ground, ChunkPool& pool) : ground_(ground), pool_(pool) {}

  // The vTensor holds the chunk from now on. Pre: taken from the pool.
  void assign(VTensor& part, ChunkId chunk) {
    part.chunk = chunk;
    part.took_from = left_by(chunk);
    note_seat(part);
  }
  // Its data left the chunk, which is free. `leaving`: once its copy out has ended.
  void leave(Range& range, std::uint32_t index, bool leaving = false) {
    VTensor& part = range.parts[index];
    note(part.chunk, ground_.address_of(range, index));
    leaving ? pool_.release_leaving(part.chunk) : pool_.release(part.chunk);
    part.chunk = kNone;
  }
  // Nobody needs its data any more: the chunk is free.
  void drop(VTensor& part) {
    note(part.chunk, 0);
    pool_.release(part.chunk);
    part.chunk = kNone;
  }
  // The vTensor that left it last; 0 if a tensor died, or nobody had it.
  Address left_by(ChunkId chunk) const noexcept { return chunk < left_by_.size() ? left_by_[chunk] : 0; }

  // It has another seat from now on. Pre: it has a chunk.
  void note_seat(const VTensor& part) {
    if (part.chunk >= seat_of_.size()) seat_of_.resize(part.chunk + 1, kNone);
    seat_of_[part.chunk] = part.seat;
  }
  // Whether the vTensor whose seat it is may take it: it is free, or being copied out by another one whose seat it is, too, as
  // the plan then says that this copy ends in time. It does not say so of one that sat there because its own seat was taken.
  bool seat_is_free(ChunkId seat) const { return pool_.is_free(seat) || (seat_of_holder(seat) == seat && pool_.may_take(seat)); }
  // The seat of the vTensor that has the chunk, or had it last.
  ChunkId seat_of_holder(ChunkId chunk) const noexcept { return chunk < seat_of_.size() ? seat_of_[chunk] : kNone; }

  // Chunks that freed ranges keep are held, but not in use.
  void idle(std::size_t chunks) noexcept { idle_ += chunks; }
  void busy(std::size_t chunks) noexcept { idle_ -= chunks; }
  std::size_t idle() const noexcept { return idle_; }
  std::size_t used() const noexcept { return pool_.held() - idle_; }
  std::size_t peak_used() const noexcept { return peak_used_; }
  void note_use() noexcept { peak_used_ = std::max(peak_used_, used()); }
  void reset_peak() noexcept { peak_used_ = used(); }

 private:
  void note(ChunkId chunk, Address address) {
    if (chunk >= left_by_.size()) left_by_.resize(chunk + 1);
    left_by_[chunk] = address;
  }

  Ground& ground_;
  ChunkPool& pool_;
  std::vector<Address> left_by_;  // by chunk
  std::vector<ChunkId> seat_of_;  // the same
  std::size_t idle_ = 0;
  std::size_t peak_used_ = 0;
};

}  // namespace vt
