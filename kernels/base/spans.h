// When things were done that no operation of the program is: copies, and recomputing.
//
// Covers: a bounded log of them, kept only while somebody asked for it.
// Leaves: drawing it beside torch's profile (vtensor/reports/profile_tracks.py). A GPU's copies are not here: CUDA's own profiler
// sees them. Thread-safety: every call may come from any thread. The mutex is a leaf: nothing is called under it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "base/types.h"

namespace vt {

enum class Doing : std::uint8_t { copying_out, copying_in, making };

struct Span {
  Doing what;
  std::uint64_t begin_ns, end_ns;  // of the steady clock
  Bytes bytes;                     // 0 if nobody counted them
};

class Spans {
 public:
  static constexpr std::size_t kMost = std::size_t{1} << 20;  // later ones are left out

  // Begins an empty log.
  void keep();
  // Ends it and hands it out.
  std::vector<Span> take();
  // What began then has ended now. Costs one load where no log is kept.
  void note(Doing what, Clock::time_point begun, Bytes bytes) {
    if (kept_.load(std::memory_order_relaxed)) add(what, begun, bytes);
  }

 private:
  void add(Doing what, Clock::time_point begun, Bytes bytes);

  std::atomic<bool> kept_{false};
  std::mutex mutex_;
  std::vector<Span> log_;
};

// The process's own: lanes and engines come and go.
Spans& spans();

}  // namespace vt
