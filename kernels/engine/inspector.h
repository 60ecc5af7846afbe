// Looking at an engine: part of its front.
//
// Covers: a consistent picture of its counters; where a tensor's bytes are; the check that everything fits together; what an
// allocation that failed says.
// Leaves: counting (counters.h; each room counts what it does). Thread-safety: every call may come from any thread and takes the
// engine's lock; but steps(), busy() and look() never wait for it, and out_of_memory() requires it.
#pragma once

#include <string>
#include <vector>

#include "engine/chunks.h"
#include "engine/range_table.h"
#include "engine/remake.h"
#include "engine/roster.h"
#include "engine/slots.h"
#include "engine/streams.h"
#include "memory/copy_engine.h"

namespace vt {

// Where the bytes of one tensor are now.
struct Residency {
  std::size_t chunks = 0;
  std::size_t in_state[kStates] = {};
  std::size_t clean = 0;
};

// One vTensor as a person asks for it.
struct Piece {
  Address address;
  Bytes bytes;
  State state;
  bool clean;
  Address took_from;
};

// A consistent picture of the counters and of what is held.
struct Snapshot {
  Counters counters;
  Bytes chunk_bytes = 0;
  std::size_t budget_chunks = 0, held_chunks = 0, peak_held_chunks = 0, cached_chunks = 0;
  std::size_t peak_used_chunks = 0;  // held, without freed ranges that wait to be used again
  std::size_t ranges = 0;
  std::size_t slots_used = 0, slots_capacity = 0, slots_peak = 0;
  Bytes moved_out_bytes = 0, moved_in_bytes = 0;
  std::size_t copies_in = 0;
  Bytes pinned = 0;                  // of the host store
  std::uint64_t host_waits = 0;      // times a thread stood until the device had done something, on ordered devices
  std::size_t overdrawn_chunks = 0, peak_overdrawn_chunks = 0;  // beyond the budget, on ordered devices
  LaneTimes out_times, in_times;
  bool moves_in_wait = false;  // Hands::in_wait
  LiveHandles handles;
  std::string host_name;
};

class Inspector {
 public:
  // `closed`: the device is gone.
  Inspector(std::mutex& mutex, const std::atomic<bool>& closed, Ground& ground, const RangeTable& ranges,
            const Roster& roster, ChunkPool& pool, Chunks& chunks, Slots& slots, const CopyEngine& copies,
            const Remake& remake, const Streams* streams)
      : mutex_(mutex),
        closed_(closed),
        ground_(ground),
        ranges_(ranges),
        roster_(roster),
        pool_(pool),
        chunks_(chunks),
        slots_(slots),
        copies_(copies),
        remake_(remake),
        streams_(streams) {}

  Snapshot snapshot();
  // Whether a call is inside: one that has the lock, or stands without it until the device has done something. Never waits.
  bool busy();
  std::uint64_t steps() const noexcept { return ground_.steps.load(std::memory_order_relaxed); }
  // A snapshot and what validate() says, if the lock can be had at once. Never waits.
  bool look(Snapshot* shot, std::string* broken);
  void reset_peaks();
  Residency residency(const void* address);
  std::vector<Piece> pieces(const void* address);
  // Whether all live tensors would fit the budget at once: then nothing ever moves.
  bool fits();
  // Empty, or the first invariant that is broken, in words.
  std::string validate();

  std::string out_of_memory(const Status& why, Bytes bytes, const char* operation) const;

 private:
  // All three require the lock.
  Snapshot picture() const;
  std::string broken() const;
  std::size_t pinned_chunks() const;

  std::mutex& mutex_;
  const std::atomic<bool>& closed_;
  Ground& ground_;
  const RangeTable& ranges_;
  const Roster& roster_;
  ChunkPool& pool_;
  Chunks& chunks_;
  Slots& slots_;
  const CopyEngine& copies_;
  const Remake& remake_;
  const Streams* streams_;
};

}  // namespace vt
