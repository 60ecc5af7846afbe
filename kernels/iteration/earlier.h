// The iterations that ended last, until the first plan is made of one of them.
//
// Batches differ in size, and a plan is followed by what allocates half as much sooner than by what allocates a third more
// (recorder.h, farness). So of several that do the same the first plan is made of the largest, not of whichever came the second
// time: of lengths between 64 and 256, 13 of the first 20 iterations followed plans instead of 9.
//
// Covers: a few of them. Leaves: when one is worth a plan (sightings.h). Not on devices that time their rows (timing.h): there
// only one of them was timed.
// Thread-safety: none; recording.h guards it.
#pragma once

#include <array>
#include <utility>

#include "iteration/recorder.h"

namespace vt {

class Earlier {
 public:
  // One ended; `ended` is an older one afterwards, or empty, whose memory may be used again.
  void keep(Recorder& ended) {
    if (!asked_) std::swap(ended, kept_[next_++ % kept_.size()]);
  }

  // A plan is to be made of `newest`: instead of it of the largest of its kind, if it would not follow the plan of the other at
  // all well. Only once: where no plan can be made of that one, it is what comes again.
  void prefer_largest(Recorder& newest) {
    if (std::exchange(asked_, true)) return;
    Recorder* largest = &newest;
    for (Recorder& each : kept_) {
      if (each.hash() == newest.hash() && each.allocated() > largest->allocated()) largest = &each;
    }
    if (farness(largest->allocated(), newest.allocated()) > kNear) {
      largest->stalled_like(newest);
      std::swap(*largest, newest);
    }
    kept_ = {};
  }

  void forget() { *this = {}; }

 private:
  std::array<Recorder, 4> kept_;
  std::size_t next_ = 0;
  bool asked_ = false;
};

}  // namespace vt
