#include "iteration/thread_state.h"

#include <pthread.h>

#include <atomic>
#include <string_view>

namespace vt {

namespace {

std::atomic<const Thread*> g_recorded{nullptr};  // the thread whose iterations are recorded

std::atomic<CurrentStream> g_current_stream{nullptr};

constinit thread_local Thread* t_mine = nullptr;  // a plain pointer: no guard on the hot path

// Ends this_thread() with its thread. Tensors may die even later (other thread-local caches hold some); for them a
// second Thread is made, and left.
struct ThreadOwner {
  ~ThreadOwner() {
    const Thread* mine = t_mine;  // another thread may get its address
    g_recorded.compare_exchange_strong(mine, nullptr);
    for (auto now = g_working.load(); now >> 32 == t_mine->works && !g_working.compare_exchange_weak(now, now - 1);) {
    }
    delete t_mine;
    t_mine = nullptr;
  }
};

// Threads by whose allocations system calls read and write, which fail where memory is away: those that gather and scatter for
// torch's gloo, while the program goes on.
Managing for_a_new_thread() noexcept {
  char name[16] = {};
  const bool told = pthread_getname_np(pthread_self(), name, sizeof name) == 0;
  return told && std::string_view(name).starts_with("pt_gloo_runloop") ? Managing::none : Managing::large;
}

}  // namespace

std::atomic<std::uint64_t> g_working{std::uint64_t{1} << 32};

void begin_work(Thread& thread) noexcept { thread.works = static_cast<std::uint32_t>(++g_working >> 32); }

std::size_t working_threads() noexcept { return static_cast<std::uint32_t>(g_working.load()); }

void count_workers_anew() noexcept {
  auto now = g_working.load();
  while (!g_working.compare_exchange_weak(now, ((now >> 32) + 1) << 32)) {
  }
}

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

Lane current_stream(Engine& engine) {
  if (engine.streams() == nullptr) return Lane::none;
  const CurrentStream current = g_current_stream.load();
  return current != nullptr ? current(engine) : Lane::none;
}

const char* operation_name(const Thread& thread) noexcept {
  return thread.frames.empty() ? nullptr : thread.frames.back().name;
}

bool recorded(const Thread& thread) noexcept {
  return g_recorded.load(std::memory_order_relaxed) == &thread && thread.remaking == 0;
}

bool anybody_recorded() noexcept { return g_recorded.load(std::memory_order_relaxed) != nullptr; }

void record_only(const Thread* thread) noexcept { g_recorded = thread; }

void pass_turn(const Thread& to) noexcept {
  const Thread* mine = &this_thread();
  g_recorded.compare_exchange_strong(mine, &to);
}

}  // namespace vt
