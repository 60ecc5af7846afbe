// Which iterations are timed on an ordered device, where that takes an event for each row.
//
// Covers: those of which a plan may be made, those by which what can be run again is weighed, those that somebody asks for; what
// the newest of them tells of calls.
// Leaves: the times (order/stopwatch.h), the log they are written to (recorder.h), what is done with it (plan_runner.h).
// On immediate devices nothing is timed here: there a row has ended when the thread goes on.
// Thread-safety: none; recording.h guards it.
#pragma once

#include "engine/engine.h"
#include "iteration/recorder.h"

namespace vt {

class Timing {
 public:
  // The next iterations are, until one of so many followed no plan. `ahead`: the next follows one, and the host is ahead of the
  // device; if it does not, it is not timed. Pre: no row of it has begun.
  void begin(Streams& streams, std::size_t iterations, bool ahead = false);
  // An iteration ends that was or was not `planned`, and the next begins, which is timed if `wanted`. Returns whether the log has
  // the times of its rows.
  bool ends(Engine& engine, Recorder& recorder, bool planned, bool wanted);
  // A row begins of what is asked of `stream`.
  void row(Engine& engine, Lane stream) {
    if (left_ > 0) engine.streams()->row_begins(stream);
  }
  // What the rows from `first` to the log's last took when an iteration was timed last, if it was one like this; else 0.
  std::uint64_t took(const Recorder& recorder, std::uint32_t first) const noexcept;
  void forget() {
    left_ = 0;
    usual_ = Recorder{};
  }

 private:
  std::size_t left_ = 0;  // iterations to be timed, the one that goes on included
  bool ahead_ = false;    // that one
  Recorder usual_;        // the newest that was, where somebody weighs by it
};

}  // namespace vt
