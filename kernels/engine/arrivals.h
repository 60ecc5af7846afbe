// Moves a plan asks for. Leaves start at once; arrivals wait in line for free chunks.
//
// Where copies need a hand to start (Moves::needs_pump) a thread of its own, the *pump*, starts what waits as copies out end: an
// operation may run for long while a lane stands idle. Whoever needs a chunk now goes before them (demand.h).
//
// Covers: the line, the pump, lending hands to copies between two operations.
// Leaves: which moves there are (plan_runner.h), moving (moves.h).
// Requires: the lock, but for waits().
#pragma once

#include <deque>
#include <span>
#include <thread>

#include "engine/supply.h"

namespace vt {

class Arrivals {
 public:
  Arrivals(std::mutex& mutex, Ground& ground, CopyEngine& copies, Moves& moves, Eviction& eviction, Supply& supply,
           Demand& demand)
      : mutex_(mutex),
        ground_(ground),
        copies_(copies),
        moves_(moves),
        eviction_(eviction),
        supply_(supply),
        demand_(demand) {}

  // Starts what leaves, and puts what arrives at the end of the line. What does not apply (freed, pinned, there already) is
  // passed over: a plan is advice (I4).
  void move(std::span<const PlannedMove> out, std::span<const PlannedMove> in);
  // Starts what there are chunks for.
  void pump() {
    if (!line_.empty()) start();
  }
  // The thread that computes is between two operations: here bytes move best (host_lane.h). May let go of the lock.
  void lend_hands(Lock& lock);
  // The line is empty from now on.
  void forget();
  // And there is no pump any more. Lets go of the lock.
  void stop(Lock& lock);
  // The same in a forked child, where the thread does not exist.
  void forget_thread();

  // Whether arrivals wait for chunks, or copies for hands: a hint, from any thread.
  bool waits() const noexcept { return waiting_.load(std::memory_order_relaxed) || copies_.wants_hands(); }

 private:
  struct Arrival {
    Range* range;
    std::uint64_t serial;  // whether the range still is the tensor that was meant
    std::uint32_t index;
  };

  void leave(const PlannedMove& move);
  void start();
  bool pump_run();
  Status take_run(const Arrival& head, std::vector<ChunkId>* chunks);
  void note_line() noexcept { waiting_.store(!line_.empty(), std::memory_order_relaxed); }
  void wake_pump();
  void run_pump();

  std::mutex& mutex_;
  Ground& ground_;
  CopyEngine& copies_;
  Moves& moves_;
  Eviction& eviction_;
  Supply& supply_;
  Demand& demand_;
  std::deque<Arrival> line_;
  std::atomic<bool> waiting_{false};
  std::thread* pump_ = nullptr;  // a pointer, as a forked child must drop it
  bool stops_ = false;
};

}  // namespace vt
