// One direction of the host driver's bus: a thread that does copies in order, at most at a given speed.
//
// Covers: the queue, the states of its copies, cancelling, the emulated link speed, fork.
// Leaves: which memory a copy may touch (driver_host.h checks that before it submits).
// Thread-safety: every call may come from any thread. The lane's mutex is a leaf: nothing is called under it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "driver.h"

namespace vt {

class HostLane {
 public:
  // bytes_per_second 0: as fast as memory allows.
  HostLane(Ticket::Lane direction, double bytes_per_second);
  ~HostLane();
  HostLane(const HostLane&) = delete;
  HostLane& operator=(const HostLane&) = delete;

  // Queues a copy between chunk memory and a host place. Returns its number.
  std::uint64_t submit(void* chunk_memory, const HostPlace& place, Bytes bytes);
  CopyState poll(std::uint64_t number, int* error);
  void wait(std::uint64_t number);
  CopyState cancel(std::uint64_t number);
  void retire(std::uint64_t number);
  LaneTimes times() const;
  std::size_t live();

  void before_fork();               // waits for the queue to empty, then holds the mutex
  void after_fork(bool in_child);   // lets go of it; in the child copies are done by submit() itself

 private:
  using Clock = std::chrono::steady_clock;

  struct Copy {
    void* chunk_memory;
    HostPlace place;
    Bytes bytes;
    Clock::time_point submitted;  // from then on the emulated link may carry it: a queue leaves no pause between copies
    CopyState state = CopyState::pending;
    int error = 0;
    bool give_up = false;
    bool retired = false;
  };

  void start();
  void run();
  // Does one copy with the mutex released while bytes move; `lock` is held on entry and on return.
  void perform(Copy& copy, std::unique_lock<std::mutex>& lock);
  // Moves one piece; 0 or an errno.
  int move_piece(const Copy& copy, Bytes from, Bytes bytes) const;
  Copy* find(std::uint64_t number);

  const Ticket::Lane direction_;
  const double bytes_per_second_;
  mutable std::mutex mutex_;
  std::condition_variable work_;   // something to do, or to give up
  std::condition_variable ended_;  // some copy ended
  std::deque<Copy> copies_;        // copies_[i] has number first_ + i; references stay valid while the thread works
  std::uint64_t first_ = 1;
  std::uint64_t next_ = 1;         // number of the copy to do next
  Clock::time_point link_free_{};  // when the emulated link has carried all earlier bytes
  std::thread* worker_ = nullptr;  // started by the first copy; a pointer because a forked child must drop it
  bool stop_ = false;
  bool inline_ = false;
  LaneTimes times_;
};

}  // namespace vt
