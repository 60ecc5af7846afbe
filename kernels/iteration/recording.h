// The process's one plan runner, its lock, and which thread it listens to.
//
// Covers: holding it for as long as something is recorded, when an operation becomes a row of the trace, time that is not
// computing, and fork.
// Leaves: what is recorded and followed (plan_runner.h), what runs on each thread (thread_state.h).
// Thread-safety: every call may come from any thread. The lock is taken before an engine's.
#pragma once

#include <memory>
#include <mutex>
#include <optional>

#include "base/clock.h"
#include "iteration/plan_runner.h"
#include "iteration/thread_state.h"

namespace vt {

// The calling thread ends an iteration and begins the next; from now on it is the one that is recorded, and
// timed, as PlanRunner::boundary() says.
Finding end_iteration(Engine& engine, bool timing = false);
// Looks for where iterations end that nobody tells of, and tells `ended` of each, in any thread; nullptr: does not look.
// `timing`: as of PlanRunner::boundary().
using RoundEnded = void (*)(Finding finding) noexcept;
void look_for_rounds(RoundEnded ended, bool timing = false);
// A new session: forgets plans and records of the one before. Pre: its engine is registered (registry.h).
void begin_recording();
// A copy of the iteration that ended last.
Recorder last_iteration();
// As PlanRunner says.
void install_plan(std::unique_ptr<Plan> plan);
void forget_plans();
PlanCounters plan_counters();

// The plan runner, held for as long as this lives if the thread's iterations are recorded; else empty.
class Recording {
 public:
  explicit Recording(const Thread& thread);
  explicit operator bool() const noexcept { return lock_.owns_lock(); }
  PlanRunner* operator->() const noexcept;

 private:
  std::unique_lock<std::mutex> lock_;
};

// The innermost operation under way begins, and uses thread.seen: where nobody tells of iterations, one may end before it. Then
// tell_round() must be called, without the recording. Pre: the recording is not empty.
std::optional<Finding> may_come_round(const Recording& recording, Thread& thread, Engine& engine);
void tell_round(Finding finding) noexcept;
// The innermost operation under way begins, and misses something: what this thread does is watched from now on, if nobody is
// recorded, or who is does nothing, and nobody told of an iteration yet.
void may_watch(Thread& thread, Engine& engine);
// The innermost operation under way uses managed memory: it is a row of the trace from now on. Pre: the recording is not empty.
void begin_row(const Recording& recording, Thread& thread, Engine& engine, Lane stream);

// Measures what is not computing.
class Stall {
 public:
  explicit Stall(const Thread& thread) : thread_(thread), on_(recorded(thread)) {
    if (on_) begun_ = Clock::now();
  }
  ~Stall() {
    if (!on_) return;
    const std::uint64_t ns = ns_since(begun_);
    if (const Recording recording{thread_}) recording->log().stall(ns);
  }
  Stall(const Stall&) = delete;
  Stall& operator=(const Stall&) = delete;

 private:
  const Thread& thread_;
  bool on_;
  Clock::time_point begun_;
};

}  // namespace vt
