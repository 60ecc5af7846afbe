#include "process/registry.h"

#include <pthread.h>

#include <atomic>
#include <mutex>
#include <vector>

namespace vt {

namespace {

using List = std::vector<Engine*>;

std::mutex g_mutex;                             // taken before any engine's lock; only to change the lists
std::vector<std::unique_ptr<Engine>>* g_all = new std::vector<std::unique_ptr<Engine>>;  // never destroyed
std::vector<std::unique_ptr<const List>>* g_lists = new std::vector<std::unique_ptr<const List>>;
std::atomic<const List*> g_open{nullptr};       // engines that still own addresses; nullptr before the first
std::atomic<Engine*> g_current{nullptr};
std::atomic<bool> g_child{false};

void publish() {
  auto open = std::make_unique<List>();
  for (const auto& engine : *g_all) {
    if (!engine->drained()) open->push_back(engine.get());
  }
  g_open = open.get();
  g_lists->push_back(std::move(open));
}

void before_fork() {
  g_mutex.lock();
  for (const auto& engine : *g_all) engine->before_fork();
}

void after_fork(bool in_child) {
  for (const auto& engine : *g_all) engine->after_fork(in_child);
  if (in_child) g_child = true;
  g_mutex.unlock();
}

}  // namespace

Engine* current_engine() noexcept { return g_current.load(std::memory_order_acquire); }

std::span<Engine* const> open_engines() noexcept {
  const List* open = g_open.load(std::memory_order_acquire);
  return open == nullptr ? std::span<Engine* const>{} : std::span<Engine* const>{*open};
}

Engine* engine_of(const void* address) noexcept {
  for (Engine* engine : open_engines()) {
    if (engine->contains(address)) return engine;
  }
  return nullptr;
}

Engine* adopt_aside(std::unique_ptr<Engine> engine) {
  static const int registered = pthread_atfork(before_fork, [] { after_fork(false); }, [] { after_fork(true); });
  (void)registered;
  std::lock_guard lock(g_mutex);
  g_all->push_back(std::move(engine));
  publish();
  return g_all->back().get();
}

Engine* adopt(std::unique_ptr<Engine> engine) {
  Engine* adopted = adopt_aside(std::move(engine));
  g_current = adopted;
  return adopted;
}

void retire_current() {
  std::lock_guard lock(g_mutex);
  if (Engine* engine = g_current.exchange(nullptr)) engine->detach();
  publish();
}

Progress progress() {
  Progress found;
  for (Engine* engine : open_engines()) {
    found.steps += engine->inspect().steps();
    if (engine->inspect().busy()) found.busy = engine;
  }
  return found;
}

bool in_forked_child() noexcept { return g_child.load(std::memory_order_relaxed); }

}  // namespace vt
