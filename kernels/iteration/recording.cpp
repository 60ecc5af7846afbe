#include "iteration/recording.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "iteration/operators.h"
#include "process/registry.h"

namespace vt {

namespace {

PlanRunner* g_runner = new PlanRunner;        // never destroyed: threads may outlive statics
std::mutex* g_runner_mutex = new std::mutex;  // guards it
std::atomic<RoundEnded> g_round_ended{nullptr};
std::atomic<bool> g_time_rounds{false}, g_told{false};

// Counts what other threads miss while the recorded one does nothing.
class Strangers {
 public:
  // Whether it has done nothing for long. Its log has so many rows.
  bool outlast(std::uint32_t rows) noexcept {
    if (std::exchange(rows_, rows) != rows) misses_ = 0;
    return ++misses_ >= kMany;
  }

 private:
  static constexpr std::uint32_t kMany = 32;
  std::uint32_t rows_ = 0, misses_ = 0;
} g_strangers;

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
  g_told = true;
  return g_runner->boundary(engine, timing, Teller::somebody);
}

void look_for_rounds(RoundEnded ended, bool timing) {
  std::lock_guard lock(*g_runner_mutex);
  g_round_ended = ended;
  g_time_rounds = timing;
  g_runner->rounds().look(ended != nullptr);
}

void begin_recording() {
  count_workers_anew();
  static const int registered = pthread_atfork(before_fork, after_fork, [] {
    record_only(nullptr);  // nothing is recorded in a child
    after_fork();
  });
  (void)registered;
  std::lock_guard lock(*g_runner_mutex);
  g_round_ended = nullptr;
  g_told = false;
  delete std::exchange(g_runner, new PlanRunner(g_runner));
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

std::optional<Finding> may_come_round(const Recording& recording, Thread& thread, Engine& engine) {
  const Frame& begins = thread.frames.back();
  if (!recording->rounds().begins(recording->log(), begins.id, thread.seen)) return std::nullopt;
  if (engine.streams() != nullptr && begins.stream == Lane::none) return std::nullopt;  // a graph is captured
  // Not in the midst of another operation: that is one row, and perhaps run again.
  const auto within = [](const Frame& frame) { return frame.row != kNone; };
  const bool noted = thread.seen_call.first_row != kNone || thread.seen_call.step != nullptr;
  if (noted || std::any_of(thread.frames.begin(), thread.frames.end(), within)) return std::nullopt;
  return recording->boundary(engine, g_time_rounds, Teller::nobody);
}

void tell_round(Finding finding) noexcept {
  if (const RoundEnded ended = g_round_ended.load()) ended(finding);
}

void may_watch(Thread& thread, Engine& engine) {
  if (recorded(thread) || thread.remaking > 0 || g_round_ended.load(std::memory_order_relaxed) == nullptr) return;
  if (g_told.load(std::memory_order_relaxed) || in_forked_child()) return;
  std::lock_guard lock(*g_runner_mutex);
  if (current_engine() != &engine || (anybody_recorded() && !g_strangers.outlast(g_runner->log().rows()))) return;
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
