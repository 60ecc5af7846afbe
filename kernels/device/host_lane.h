// One direction of the host driver's bus: copies in order, piece by piece.
//
// Covers: the queue, the states of its copies, cancelling, the emulated link speed, fork, and whose hands move bytes. There is
// no copy engine: a thread of the lane takes a processor from one of those that compute, and the others wait for that one.
// Between memory and memory the threads that compute therefore move the bytes, all of them together: while somebody waits
// for a copy and, where a link of some speed decides when copies end, whenever they pass by (lend_hands). A file at the other
// end is left to a thread of the lane (DESIGN.md says what that gains).
// Leaves: which memory a copy may touch (driver_host.h checks that before it submits).
// Thread-safety: every call may come from any thread. The lane's mutex is a leaf: nothing but the log of spans is
// called under it.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "device/driver.h"

namespace vt {

// Calls work(data) on every thread that computes for the caller, the caller too, and returns when all are back. This is the
// signature of OpenMP's entry point in libgomp, which other OpenMP libraries offer too; threads 0: as many as are set.
using Team = void (*)(void (*work)(void*), void* data, unsigned threads, unsigned flags);

// The team torch computes with; null if this process has none, or one that leaves most processors to the lanes' threads.
Team computing_team() noexcept;

class HostLane {
 public:
  // bytes_per_second 0: as fast as memory allows. `team`: moves the bytes; null: the lane's thread does.
  HostLane(Lane direction, double bytes_per_second, Team team);
  ~HostLane();
  HostLane(const HostLane&) = delete;
  HostLane& operator=(const HostLane&) = delete;

  // Queues a copy between chunk memory and a host place. Returns its number.
  std::uint64_t submit(void* chunk_memory, const HostPlace& place, Bytes bytes);
  CopyState poll(std::uint64_t number, int* error);
  void wait(std::uint64_t number);
  // Moves the bytes of what is under way with the caller's team, if it has one. A link ends copies in its own time all the same.
  void lend_hands();
  CopyState cancel(std::uint64_t number);
  void retire(std::uint64_t number);
  LaneTimes times() const;
  Hands hands() const noexcept {
    if (team_ == nullptr) return Hands::none;
    return bytes_per_second_ > 0 ? Hands::between : Hands::in_wait;
  }
  std::size_t live();

  void before_fork();               // waits for the queue to empty, then holds the mutex
  void after_fork(bool in_child);   // lets go of it; in the child copies are done by submit() itself

 private:
  struct Copy {
    void* chunk_memory;
    HostPlace place;
    Bytes bytes;
    Clock::time_point submitted;  // from then on the emulated link may carry it: a queue leaves no pause between copies
    Clock::time_point begun{};
    Bytes taken = 0;  // bytes of the pieces that were taken to be moved
    int movers = 0;   // threads that move one now, and the one that sleeps out the link time
    CopyState state = CopyState::pending;
    int error = 0;
    bool give_up = false;
    bool retired = false;
  };

  void start();
  void run();
  // Moves the next piece of the oldest copy that has one left, up to number `last`; false if there is none. `lock` is
  // held on entry and on return, but not while bytes move.
  bool move_next(std::uint64_t last, std::unique_lock<std::mutex>& lock);
  void move_all(std::uint64_t last, std::unique_lock<std::mutex>& lock);
  // Bytes of what is under way, up to number `last`, that nobody has taken yet; counted no further than is worth a team.
  Bytes left(std::uint64_t last) const;
  void move_together(std::uint64_t last, std::unique_lock<std::mutex>& lock);
  void carry(std::uint64_t number, std::unique_lock<std::mutex>& lock);
  void finish(Copy& copy);
  void was_busy(Clock::time_point since);
  // Moves bytes of a copy; 0 or an errno.
  int move_piece(const Copy& copy, Bytes from, Bytes bytes) const;
  Copy* find(std::uint64_t number);
  std::uint64_t end() const { return first_ + copies_.size(); }

  const Lane direction_;
  const double bytes_per_second_;
  const Team team_;
  mutable std::mutex mutex_;
  std::condition_variable work_;   // something to do, or to give up
  std::condition_variable ended_;  // some copy ended
  std::deque<Copy> copies_;        // copies_[i] has number first_ + i; references stay valid while a thread works
  std::uint64_t first_ = 1;
  std::uint64_t next_ = 1;         // of all earlier copies every piece was taken
  Clock::time_point link_free_{};  // when the emulated link has carried all earlier bytes
  Clock::time_point last_end_{};   // of a copy
  std::thread* worker_ = nullptr;  // started by the first copy; a pointer because a forked child must drop it
  bool stop_ = false;
  bool inline_ = false;
  LaneTimes times_;
};

}  // namespace vt
