#include "iteration/recording.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "iteration/operators.h"
#include "process/registry.h"

namespace vt {

namespace {

PlanRunner* g_runner = new PlanRunner;        // never destroyed: threads may outlive statics
std::mutex* g_runner_mutex = new std::mutex;  // guards it
std::atomic<RoundEnded> g_round_ended{nullptr};

// Nobody else may be inside the runner or the names while a process is copied. The registry's handlers, which hold the engines,
// were registered first, so these come before them: the order in which the mutexes are always taken.
void before_fork() {
  g_runner_mutex->lock();
  hold_operators();
}

void after_fork() {
  let_operators_go();
  g_runner_mutex->unlock();
}

}  // namespace

Finding end_iteration(Engine& engine, bool timing) {
  std::lock_guard lock(*g_runner_mutex);
  if (current_engine() != &engine) return Finding::nothing;  // another thread ended the session meanwhile
  record_only(&this_thread());
  return g_runner->boundary(engine, timing);
}

void look_for_rounds(RoundEnded ended) {
  std::lock_guard lock(*g_runner_mutex);
  g_round_ended = ended;
  g_runner->rounds().look(ended != nullptr);
}

void begin_recording() {
  static const int registered = pthread_atfork(before_fork, after_fork, [] {
    record_only(nullptr);  // nothing is recorded in a child
    after_fork();
  });
  (void)registered;
  std::lock_guard lock(*g_runner_mutex);
  g_round_ended = nullptr;
  g_runner->reset();
}

Recorder last_iteration() {
  std::lock_guard lock(*g_runner_mutex);
  return g_runner->last();
}

void install_plan(std::unique_ptr<Plan> plan) {
  std::lock_guard lock(*g_runner_mutex);
  g_runner->plans().install(std::move(plan));
}

void forget_plans() {
  std::lock_guard lock(*g_runner_mutex);
  g_runner->plans().forget();
}

PlanCounters plan_counters() {
  std::lock_guard lock(*g_runner_mutex);
  return g_runner->counters();
}

Recording::Recording(const Thread& thread) : lock_(*g_runner_mutex, std::defer_lock) {
  if (!recorded(thread)) return;
  lock_.lock();
  if (!recorded(thread) || !g_runner->recording()) lock_.unlock();
}

PlanRunner* Recording::operator->() const noexcept { return g_runner; }

void may_come_round(const Recording& recording, Thread& thread, Engine& engine) {
  const RoundEnded ended = g_round_ended.load(std::memory_order_relaxed);
  const OpId op = thread.frames.back().id;
  if (ended == nullptr || !recording->rounds().begins(recording->log(), op, thread.seen)) return;
  if (engine.streams() != nullptr && thread.frames.back().stream == Lane::none) return;  // a graph is captured
  // Not in the midst of another operation: that is one row, and perhaps run again.
  const auto within = [](const Frame& frame) { return frame.row != kNone; };
  if (thread.seen_call.frame != kNone || std::any_of(thread.frames.begin(), thread.frames.end(), within)) return;
  ended(recording->come_round(engine));
}

void may_watch(Thread& thread, Engine& engine) {
  if (g_round_ended.load(std::memory_order_relaxed) == nullptr || thread.remaking > 0 || in_forked_child()) return;
  std::lock_guard lock(*g_runner_mutex);
  if (!g_runner->rounds().looks() || g_runner->recording() || current_engine() != &engine) return;
  record_only(&thread);
  g_runner->watch(engine);
}

void begin_row(const Recording& recording, Thread& thread, Engine& engine, Lane stream) {
  static const OpId outside = operator_id("(outside operations)");
  static const OpId went_on = operator_id("(goes on)");
  if (thread.frames.empty()) {
    recording->row(engine, outside, stream);
  } else if (thread.frames.back().row == kNone) {
    thread.frames.back().row = recording->row(engine, thread.frames.back().id, stream);
  } else if (recording->log().freed()) {
    recording->row(engine, went_on, stream);
  }
  if (recording->has_due()) thread.due = recording->take_due();
}

}  // namespace vt
