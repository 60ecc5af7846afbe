// Who must come after whom, on a device whose work goes on after the call that asked for it.
//
// Covers: fences, the tickets that end the work of a stream, and asking for an order only where it is not yet given.
// Leaves: what the order is for (engine/fences.h), how a device keeps it (driver.h).
// Thread-safety: now(), waited_for() and pulse() from any thread without a lock; the rest under the engine's lock.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "order/stopwatch.h"

namespace vt {

// Points that must all be passed; at most one for each lane, as a lane passes its own in order.
class Fence {
 public:
  void add(Ticket ticket) {
    if (ticket.number == 0) return;
    for (Ticket& point : points_) {
      if (point.lane != ticket.lane) continue;
      point.number = std::max(point.number, ticket.number);
      return;
    }
    points_.push_back(ticket);
  }
  void add(const Fence& other) {
    for (const Ticket& point : other.points_) add(point);
  }
  void clear() noexcept { points_.clear(); }
  bool empty() const noexcept { return points_.empty(); }
  auto begin() const noexcept { return points_.begin(); }
  auto end() const noexcept { return points_.end(); }

 private:
  std::vector<Ticket> points_;  // nearly always one
};

class StreamOrder {
 public:
  explicit StreamOrder(OrderedDriver& driver) : driver_(driver), stopwatch_(driver) {}

  // The lane of a stream that computes. Stops the program if the device cannot have one more. `foreign`: another library's,
  // which may end it without telling, and get its name again for another one. So nothing is asked of it but while an operation
  // is (its tickets are made at the ends of operations), and what it came after once counts for nothing.
  Lane adopt(void* stream, bool foreign = false);

  // The ticket that will end the work asked of `stream` before this call. It need not exist yet: whoever must come
  // after it makes it. The number is read after the work was asked for and made (mark) before the device is told, so that a
  // ticket of this number, whoever makes it, lies behind that work.
  Ticket now(Lane stream) const noexcept { return {stream, at(stream).marked.load() + 1}; }
  bool is_foreign(Lane stream) const noexcept { return at(stream).foreign.load(std::memory_order_relaxed); }
  // An operation has been asked of it.
  void used(Lane stream) noexcept;
  // The ticket that will end all that operations asked of it so far: of a foreign stream one that exists, or is being made.
  Ticket so_far(Lane stream) const noexcept {
    return at(stream).foreign.load() ? Ticket{stream, at(stream).asked.load()} : now(stream);
  }
  // Makes a ticket on a stream every few calls, so that a later eviction need not come after all that was asked since;
  // on a foreign one each time.
  void pulse(Lane stream);
  // What streams were asked for so far is ended by tickets that exist: none can be made while a graph is captured on one.
  void mark_streams();
  // Whether what `stream` does from now on comes after this copy.
  bool waited_for(Lane stream, std::uint64_t copy_in) const noexcept { return at(stream).waited_in.load() >= copy_in; }

  // What is asked of `later` from now on comes after the fence.
  void after(Lane later, const Fence& fence);
  void after(Lane later, Ticket earlier);
  bool passed(const Fence& fence);
  // Stands until the fence is passed: the exception, and counted.
  void wait(const Fence& fence);
  std::uint64_t waits() const noexcept { return waits_; }
  // A ticket that ends all that was asked of `copies` so far: the newest, where nothing was to come after anything since.
  Ticket end_of(Lane copies);
  // The newest: a copy that was asked for.
  void copied(Ticket copy) noexcept { at(copy.lane).end = copy.number; }
  // All that operations asked of the streams, as far as their ends were told (used). All that was ever asked of them, and of the
  // whole device.
  Fence operations() const;
  Fence streams() const;
  Fence everything();
  // What streams wait for copies is no part of what it measures.
  Stopwatch& stopwatch() noexcept { return stopwatch_; }

 private:
  static constexpr std::size_t kLanes = 255;
  static constexpr std::uint32_t kPulse = 16;

  struct Stream {
    std::atomic<std::uint64_t> marked{0};     // number of the newest ticket
    std::atomic<std::uint64_t> waited_in{0};  // it comes after this copy in
    std::atomic<std::uint64_t> asked{0};      // of the ticket that ends the operations asked of it
    std::atomic<bool> foreign{false};
    std::atomic<std::uint32_t> calls{0};
    std::mutex making;                        // tickets are made in the order of their numbers
    std::vector<std::uint64_t> known;         // by lane: the newest ticket it comes after; of a foreign stream none is known
    std::uint64_t end = 0;                    // where it copies: the ticket that ends all it was asked for; 0: there is none
  };

  Stream& at(Lane lane) const noexcept { return streams_[static_cast<std::size_t>(lane)]; }
  static bool is_stream(Lane lane) noexcept { return lane >= Lane::first_stream; }
  // Sees to it that a stream's ticket exists. Returns one that does and lies no earlier.
  Ticket make(Ticket ticket);
  bool passed(Ticket made);

  OrderedDriver& driver_;
  Stopwatch stopwatch_;
  std::size_t lanes_ = static_cast<std::size_t>(Lane::first_stream);  // in use, copies included
  std::unique_ptr<Stream[]> streams_ = std::make_unique<Stream[]>(kLanes);
  std::uint64_t waits_ = 0;
};

}  // namespace vt
