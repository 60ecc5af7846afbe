// When rows began on a device whose work goes on after the call that asked for it.
//
// Covers: the time between rows by the device's own clock, without what its streams waited for copies, and for calls of the
// engine's: mapping a chunk takes longer than many kernels, and a device that has nothing to do meanwhile would seem slow.
// Leaves: which rows there are (recorder.h), who waits for what (stream_order.h).
// Thread-safety: none; under the engine's lock.
#pragma once

#include <vector>

#include "device/driver_ordered.h"

namespace vt {

class Stopwatch {
 public:
  using Lane = Ticket::Lane;

  explicit Stopwatch(OrderedDriver& driver) : driver_(driver) {}

  void start();
  // A row begins with what `stream` is asked for next.
  void row(Lane stream) { note(What::row, stream); }
  // Around asking `stream` to wait for a copy.
  void wait_begins(Lane stream) {
    if (pauses_ == 0) note(What::wait, stream);
  }
  void wait_ends(Lane stream) {
    if (pauses_ == 0) note(What::work, stream);
  }
  // Around what the thread that asks for rows does instead. May be nested.
  void pause();
  void resume();
  // The last row ends with what was asked so far.
  void stop();
  // Nanoseconds from the first row to each, and to the end. Empty if the device did not tell. What one stream waited is taken out
  // for all: rows that another computed meanwhile look shorter. Pre: stopped, and all that was asked before is done.
  std::vector<std::uint64_t> read();

 private:
  enum class What : std::uint8_t { row, wait, work };

  void note(What what, Lane stream);

  OrderedDriver& driver_;
  std::vector<What> noted_;  // by stamp
  Lane last_ = Lane::none;   // of the newest row
  Lane paused_ = Lane::none;  // where a pause began
  unsigned pauses_ = 0;
  bool running_ = false, failed_ = false;
};

}  // namespace vt
