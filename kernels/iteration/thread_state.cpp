#include "iteration/thread_state.h"

#include <pthread.h>

#include <atomic>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "process/registry.h"

namespace vt {

namespace {

std::mutex g_names_mutex;
std::unordered_map<OpId, std::string>* g_names = new std::unordered_map<OpId, std::string>;  // never destroyed

PlanRunner* g_runner = new PlanRunner;                  // never destroyed: threads may outlive statics
std::mutex* g_runner_mutex = new std::mutex;            // guards it; taken before an engine's
std::atomic<const Thread*> g_runs_iterations{nullptr};  // the thread that ended an iteration last

std::atomic<std::size_t> g_working{0};

std::atomic<CurrentStream> g_current_stream{nullptr};

constinit thread_local Thread* t_mine = nullptr;  // a plain pointer: no guard on the hot path

// Ends this_thread() with its thread. Tensors may die even later (other thread-local caches hold some); for them a
// second Thread is made, and left.
struct ThreadOwner {
  ~ThreadOwner() {
    const Thread* mine = t_mine;  // another thread may get its address
    g_runs_iterations.compare_exchange_strong(mine, nullptr);
    g_working -= t_mine->works;
    delete t_mine;
    t_mine = nullptr;
  }
};

// Nobody else may be inside the runner or the names while a process is copied. The registry's handlers, which hold the engines,
// were registered first, so these come before them: the order in which the mutexes are always taken.
void before_fork() {
  g_runner_mutex->lock();
  g_names_mutex.lock();
}

void after_fork() {
  g_names_mutex.unlock();
  g_runner_mutex->unlock();
}

// Threads by whose allocations system calls read and write, which fail where memory is away: those that gather and scatter for
// torch's gloo, while the program goes on.
Managing for_a_new_thread() noexcept {
  char name[16] = {};
  const bool told = pthread_getname_np(pthread_self(), name, sizeof name) == 0;
  return told && std::string_view(name).starts_with("pt_gloo_runloop") ? Managing::none : Managing::large;
}

}  // namespace

void begin_work(Thread& thread) noexcept {
  thread.works = true;
  ++g_working;
}

std::size_t working_threads() noexcept { return g_working.load(); }

Thread& this_thread() {
  if (t_mine == nullptr) {
    t_mine = new Thread;
    t_mine->managing = for_a_new_thread();
    static thread_local ThreadOwner owner;
    (void)owner;
  }
  return *t_mine;
}

void set_current_stream(CurrentStream current) noexcept { g_current_stream = current; }

Ticket::Lane current_stream(Engine& engine) {
  if (engine.streams() == nullptr) return Ticket::Lane::none;
  const CurrentStream current = g_current_stream.load();
  return current != nullptr ? current(engine) : Ticket::Lane::none;
}

const char* operation_name(const Thread& thread) noexcept {
  return thread.frames.empty() ? nullptr : thread.frames.back().name;
}

OpId operator_id(const std::string& name) {
  OpId id = Recorder::kSeed;
  for (const char c : name) id = Recorder::mix(id, static_cast<unsigned char>(c));
  std::lock_guard lock(g_names_mutex);
  g_names->emplace(id, name);
  return id;
}

std::string operator_name(OpId id) {
  std::lock_guard lock(g_names_mutex);
  const auto found = g_names->find(id);
  return found == g_names->end() ? "?" : found->second;
}

Finding end_iteration(Engine& engine, bool timing) {
  std::lock_guard lock(*g_runner_mutex);
  if (current_engine() != &engine) return Finding::nothing;  // another thread ended the session meanwhile
  g_runs_iterations = &this_thread();
  return g_runner->boundary(engine, timing);
}

void pass_turn(const Thread& to) noexcept {
  const Thread* mine = &this_thread();
  g_runs_iterations.compare_exchange_strong(mine, &to);
}

void stop_recording() noexcept { g_runs_iterations = nullptr; }

void begin_recording() {
  static const int registered = pthread_atfork(before_fork, after_fork, [] {
    g_runs_iterations = nullptr;  // nothing is recorded in a child
    after_fork();
  });
  (void)registered;
  std::lock_guard lock(*g_runner_mutex);
  g_runner->reset();
}

Recorder last_iteration() {
  std::lock_guard lock(*g_runner_mutex);
  return g_runner->last();
}

void install_plan(std::unique_ptr<Plan> plan) {
  std::lock_guard lock(*g_runner_mutex);
  g_runner->install(std::move(plan));
}

void forget_plans() {
  std::lock_guard lock(*g_runner_mutex);
  g_runner->forget_plans();
}

PlanCounters plan_counters() {
  std::lock_guard lock(*g_runner_mutex);
  return g_runner->counters();
}

bool recorded(const Thread& thread) noexcept {
  return g_runs_iterations.load(std::memory_order_relaxed) == &thread && thread.remaking == 0;
}

Recording::Recording(const Thread& thread) : lock_(*g_runner_mutex, std::defer_lock) {
  if (!recorded(thread)) return;
  lock_.lock();
  if (!recorded(thread) || !g_runner->recording()) lock_.unlock();
}

PlanRunner* Recording::operator->() const noexcept { return g_runner; }

void begin_row(const Recording& recording, Thread& thread, Engine& engine, Ticket::Lane stream) {
  static const OpId outside = operator_id("(outside operations)");
  static const OpId went_on = operator_id("(goes on)");
  if (thread.frames.empty()) {
    recording->row(engine, outside, stream);
  } else if (thread.frames.back().row == kNone) {
    thread.frames.back().row = recording->row(engine, thread.frames.back().id, stream);
  } else if (recording->freed()) {
    recording->row(engine, went_on, stream);
  }
  if (recording->has_due()) thread.due = recording->take_due();
}

}  // namespace vt
