// What the engine counts. Plain numbers under the engine's lock; a copy is handed to whoever asks.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/types.h"

namespace vt {

// torch's four figures for an amount: what it is, its peak, and all that was ever added and taken away.
struct Amount {
  std::uint64_t current = 0, peak = 0, allocated = 0, freed = 0;

  void add(std::uint64_t n) noexcept {
    current += n;
    allocated += n;
    peak = std::max(peak, current);
  }
  void sub(std::uint64_t n) noexcept {
    current -= n;
    freed += n;
  }
  void reset_peak() noexcept { peak = current; }
};

struct Counters {
  Amount tensor_bytes;      // managed allocations, as asked for
  Amount wanted_bytes;      // the same in whole chunks: what an unlimited budget would hold
  Amount absent_bytes;      // tensor bytes whose only place is the host store (absent, arriving or borrowed)
  Amount borrowed_bytes;    // of these, mapped in place
  Amount dropped_bytes;     // tensor bytes that are nowhere, as they can be recomputed
  std::uint64_t allocations = 0;
  std::uint64_t reused = 0;      // served by a freed range of the same size, still mapped
  std::uint64_t remaps = 0;      // chunks mapped at an address that led elsewhere, or nowhere
  std::uint64_t evictions = 0;   // vTensors that left by a copy
  std::uint64_t discards = 0;    // vTensors that left for free: their slot was still valid
  std::uint64_t drops = 0;       // vTensors that left for free: they can be recomputed
  std::uint64_t made_bytes = 0;  // tensor bytes recomputed
  std::uint64_t make_ns = 0;     // time spent on that, of all threads
  std::uint64_t cancels = 0;     // moves turned back because the data was wanted again
  std::uint64_t faults = 0;      // vTensors brought back because somebody touched them outside an operation
  std::uint64_t oversize = 0;    // times the budget had no room for what an operation reads, or for what it makes
  std::uint64_t failures = 0;    // copies or driver calls that failed and were survived
  std::uint64_t arrivals = 0;    // vTensors a plan began to bring back
  std::uint64_t late_arrivals = 0;  // of these, not yet there when they were needed
  std::uint64_t wait_ns = 0;        // time operations and allocations stood waiting for copies

  void reset_peaks() noexcept {
    for (Amount* amount : {&tensor_bytes, &wanted_bytes, &absent_bytes, &borrowed_bytes, &dropped_bytes}) amount->reset_peak();
  }
};

}  // namespace vt
