// When rows began on a device whose work goes on after the call that asked for it.
//
// Covers: the time between rows by the device's own clock, without what its streams waited for copies, what is recomputed, and
// calls of the engine's: mapping a chunk takes longer than many kernels, and a device that has nothing to do meanwhile would seem
// slow. Where the host is ahead of the device it has enough to do, and those are not noted: two events for each call, some five
// to a row, take the device longer than what they tell (on an H100 rows of ResNet-50 added up to 158 ms of a step of 142).
// Leaves: which rows there are (recorder.h), who waits for what (stream_order.h).
// Thread-safety: none; under the engine's lock.
#pragma once

#include <vector>

#include "device/driver_ordered.h"

namespace vt {

class Stopwatch {
 public:
  explicit Stopwatch(OrderedDriver& driver) : driver_(driver) {}

  // `ahead`: the host is ahead of the device.
  void start(bool ahead = false);
  // A row begins with what `stream` is asked for next.
  void row(Lane stream) { note(What::row, stream); }
  // Around asking `stream` to wait for a copy.
  void wait_begins(Lane stream) {
    if (!pauses()) note(What::wait, stream);
  }
  void wait_ends(Lane stream) {
    if (!pauses()) note(What::work, stream);
  }
  // Around a call of the engine's. May be nested.
  void call_begins() { pause(&calls_); }
  void call_ends() { resume(&calls_); }
  // Around what makes something again. May be nested.
  void making_begins() { pause(&makings_); }
  void making_ends() { resume(&makings_); }
  // The last row ends with what was asked so far.
  void stop();
  // Nanoseconds from the first row to each, and to the end. Empty if the device did not tell. What one stream waited is taken out
  // for all: rows that another computed meanwhile look shorter. Pre: stopped, and all that was asked before is done.
  std::vector<std::uint64_t> read();

 private:
  enum class What : std::uint8_t { row, wait, work };

  bool pauses() const noexcept { return makings_ > 0 || (calls_ > 0 && !ahead_); }
  void pause(unsigned* why);
  void resume(unsigned* why);
  void note(What what, Lane stream);

  OrderedDriver& driver_;
  std::vector<What> noted_;  // by stamp
  Lane last_ = Lane::none;   // of the newest row
  Lane paused_ = Lane::none;  // where a pause began
  unsigned calls_ = 0, makings_ = 0;
  bool running_ = false, failed_ = false, ahead_ = false;
};

}  // namespace vt
