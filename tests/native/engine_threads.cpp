// The engine where threads meet: many of them allocate, use, read and free under one small budget.
// Run under ThreadSanitizer and AddressSanitizer by `make sanitize`.

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>

#include "check.h"
#include "device/driver_host.h"
#include "testing/driver_inject.h"
#include "engine/engine.h"
#include "process/fault_handler.h"
#include "process/registry.h"
#include "team.h"

using namespace vt;

namespace {

constexpr Bytes kChunk = 4096;

std::unique_ptr<Engine> make_engine(std::size_t budget, bool disk, double link, InjectDriver** inject = nullptr,
                                    Team team = nullptr, Bytes chunk = kChunk) {
  auto driver = std::make_unique<InjectDriver>(std::make_unique<HostDriver>(chunk, link, team));
  if (inject != nullptr) *inject = driver.get();
  EngineConfig config;
  config.budget_chunks = budget;
  auto store = disk ? make_file_store(chunk, 4096 * chunk, "/tmp") : make_ram_store(chunk, 4096 * chunk);
  return std::make_unique<Engine>(std::move(driver), std::move(store), config);
}

struct Tensor {
  char* memory;
  Bytes bytes;
  char value;
};

// One use of a tensor, as the observer does it: the fast path if it can, else through the lock.
Use use(Engine& engine, const Tensor& tensor, Bytes from, Bytes to, bool write) {
  engine.tick();
  Range* range = engine.find(tensor.memory);
  CHECK(range != nullptr);
  if (engine.try_pin(*range, write)) return whole(*range, write);
  const Use part = engine.part(*range, from, to, write);
  engine.pin_and_fetch({&part, 1}, "test");
  return part;
}

void work(Engine& engine, unsigned seed, int steps, Bytes chunk = kChunk) {
  std::mt19937 random(seed);
  std::vector<Tensor> mine;
  for (int step = 0; step < steps; ++step) {
    const unsigned action = random() % 10;
    if (mine.size() < 3 || (action < 2 && mine.size() < 12)) {
      const Bytes bytes = 1 + random() % (5 * chunk);
      Tensor tensor{static_cast<char*>(engine.allocate(bytes)), bytes, static_cast<char>(random())};
      const Use all = use(engine, tensor, 0, bytes, true);
      std::memset(tensor.memory, tensor.value, bytes);
      engine.unpin(all);
      mine.push_back(tensor);
    } else if (action < 4) {
      const std::size_t which = random() % mine.size();
      engine.free(mine[which].memory);
      mine.erase(mine.begin() + static_cast<std::ptrdiff_t>(which));
    } else if (action < 6) {
      Tensor& tensor = mine[random() % mine.size()];
      const Use all = use(engine, tensor, 0, tensor.bytes, true);
      for (Bytes i = 0; i < tensor.bytes; i += 97) CHECK(tensor.memory[i] == tensor.value);
      tensor.value = static_cast<char>(random());
      std::memset(tensor.memory, tensor.value, tensor.bytes);
      engine.unpin(all);
    } else {
      const Tensor& tensor = mine[random() % mine.size()];
      const Bytes from = random() % tensor.bytes;
      const Bytes to = from + 1 + random() % (tensor.bytes - from);
      const Use part = use(engine, tensor, from, to, false);
      for (Bytes i = from; i < to; i += 61) CHECK(tensor.memory[i] == tensor.value);
      engine.unpin(part);
    }
  }
  for (const Tensor& tensor : mine) engine.free(tensor.memory);
}

void run_threads(std::size_t budget, bool disk, double link, int steps, Team team = nullptr, Bytes chunk = kChunk) {
  auto engine = make_engine(budget, disk, link, nullptr, team, chunk);
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) threads.emplace_back([&, t] { work(*engine, t, steps, chunk); });
  std::atomic<bool> stop{false};
  std::thread looker([&] {
    while (!stop) {
      CHECK(engine->inspect().validate().empty());
      CHECK(engine->inspect().snapshot().held_chunks <= budget);
      usleep(500);
    }
  });
  for (std::thread& thread : threads) thread.join();
  stop = true;
  looker.join();
  const Snapshot shot = engine->inspect().snapshot();
  CHECK(shot.ranges == 0 && shot.slots_used == 0 && shot.counters.evictions > 0);
  engine->detach();
  CHECK(engine->drained());
}

}  // namespace

TEST(threads_share_a_small_budget) { run_threads(24, false, 0, 3000); }
TEST(threads_share_a_budget_below_their_working_sets) { run_threads(5, false, 0, 3000); }
TEST(threads_share_a_file) { run_threads(24, true, 0, 1500); }
TEST(threads_share_a_slow_link) { run_threads(24, false, 200e6, 1500); }
// Chunks of two pieces: less than one is moved by who waits, alone.
constexpr Bytes kLarge = Bytes{512} << 10;
TEST(threads_copy_for_each_other) { run_threads(24, false, 0, 300, team_of_three, kLarge); }
TEST(threads_copy_for_each_other_in_the_time_of_a_link) { run_threads(24, false, 20e9, 300, team_of_three, kLarge); }

TEST(who_waits_for_little_calls_nobody) {
  static std::atomic<int> calls{0};
  const Team counted = [](void (*work)(void*), void* data, unsigned, unsigned) {
    ++calls;
    work(data);
  };
  for (const Bytes chunk : {kChunk, kLarge}) {
    auto engine = make_engine(2, false, 0, nullptr, counted, chunk);
    void* first = engine->allocate(2 * chunk);
    void* second = engine->allocate(2 * chunk);  // the first leaves
    CHECK((calls > 0) == (chunk == kLarge));
    engine->free(first);
    engine->free(second);
    engine->detach();
    CHECK(engine->drained());
  }
}

TEST(the_budget_changes_while_threads_work) {
  auto engine = make_engine(24, false, 400e6);
  std::atomic<int> running{4};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      work(*engine, t, 1500);
      --running;
    });
  }
  for (std::size_t k = 0; running > 0; ++k) {
    try {
      engine->resize(k % 2 == 0 ? 24 + 8 * (k % 40) : 24);
    } catch (const OutOfMemory&) {  // all pinned just now: the old budget stays
    }
    CHECK(engine->inspect().validate().empty());
    usleep(300);
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(engine->inspect().snapshot().ranges == 0);
  engine->detach();
  CHECK(engine->drained());
}

TEST(a_copy_under_way_is_cancelled_when_its_tensor_is_used_or_freed) {
  // 4 KiB at 400 KB/s: a copy takes 10 ms, so the eviction below is surely under way when the tensor is wanted.
  auto engine = make_engine(4, false, 400e3);
  char* old = static_cast<char*>(engine->allocate(2 * kChunk));
  std::memset(old, 3, 2 * kChunk);
  char* dying = static_cast<char*>(engine->allocate(2 * kChunk));
  std::memset(dying, 4, 2 * kChunk);
  std::thread other([&] { engine->free(engine->allocate(4 * kChunk)); });  // evicts both
  usleep(3000);
  const Tensor tensor{old, 2 * kChunk, 3};
  const Use all = use(*engine, tensor, 0, tensor.bytes, false);
  for (Bytes i = 0; i < tensor.bytes; ++i) CHECK(old[i] == 3);
  engine->unpin(all);
  engine->free(dying);
  other.join();
  CHECK(engine->inspect().validate().empty());
  engine->free(old);
  engine->detach();
  CHECK(engine->drained());
}

TEST(what_a_plan_brings_early_can_leave_again) {
  // Copies move only while somebody waits, and nobody has waited yet for what the plan brings.
  auto engine = make_engine(4, false, 0, nullptr, team_of_three);
  const auto filled = [&](char value) {
    Tensor tensor{static_cast<char*>(engine->allocate(2 * kChunk)), 2 * kChunk, value};
    const Use all = use(*engine, tensor, 0, tensor.bytes, true);
    std::memset(tensor.memory, value, tensor.bytes);
    engine->unpin(all);
    return tensor;
  };
  const Tensor early = filled(1), needed = filled(2), other = filled(3);  // `early` left for `other`
  engine->free(other.memory);
  const auto bring = [&] {
    CHECK(engine->inspect().residency(early.memory).in_state[static_cast<std::size_t>(State::absent)] == 2);
    Range* range = engine->find(early.memory);
    const PlannedMove move{range, range->serial, 0, 2};
    engine->move_by_plan({}, {&move, 1});
    CHECK(engine->inspect().residency(early.memory).in_state[static_cast<std::size_t>(State::arriving)] == 2);
  };
  bring();
  const Use pinned = use(*engine, needed, 0, needed.bytes, false);
  const Tensor large = filled(4);
  CHECK(engine->inspect().snapshot().counters.oversize == 0 && engine->inspect().snapshot().counters.borrowed_bytes.peak == 0);
  engine->unpin(pinned);
  engine->free(large.memory);
  bring();
  engine->resize(2);
  engine->evict_all();
  CHECK(engine->inspect().snapshot().held_chunks == 0);
  for (const Tensor& tensor : {early, needed}) {
    const Use all = use(*engine, tensor, 0, tensor.bytes, false);
    for (Bytes i = 0; i < tensor.bytes; ++i) CHECK(tensor.memory[i] == tensor.value);
    engine->unpin(all);
    engine->free(tensor.memory);
  }
  engine->detach();
  CHECK(engine->drained());
}

TEST(every_driver_call_fails_once) {
  // Walks the same program again and again with the k-th call of each kind failing, until no call is left to fail.
  for (const char* name : {"create", "map", "protect", "unmap", "map_host", "unmap_host", "copy_out", "copy_in",
                           "poll_out", "poll_in"}) {
    for (std::uint64_t nth = 1;; ++nth) {
      InjectDriver* inject = nullptr;
      auto engine = make_engine(6, false, 0, &inject);
      inject->fail(name, nth, 1);
      std::vector<Tensor> tensors;
      for (int i = 0; i < 6; ++i) {
        const Bytes bytes = (1 + static_cast<Bytes>(i) % 3) * kChunk;
        try {
          Tensor tensor{static_cast<char*>(engine->allocate(bytes)), bytes, static_cast<char>(i)};
          const Use all = use(*engine, tensor, 0, bytes, true);
          std::memset(tensor.memory, tensor.value, bytes);
          engine->unpin(all);
          tensors.push_back(tensor);
        } catch (const OutOfMemory&) {
        }
        CHECK(engine->inspect().validate().empty());
      }
      for (int round = 0; round < 2; ++round) {
        for (const Tensor& tensor : tensors) {
          const Use all = use(*engine, tensor, 0, tensor.bytes, round == 1);
          for (Bytes i = 0; i < tensor.bytes; ++i) CHECK(tensor.memory[i] == tensor.value);
          engine->unpin(all);
          CHECK(engine->inspect().validate().empty());
        }
      }
      if (!tensors.empty()) engine->export_address(tensors[0].memory);
      engine->evict_all();
      for (const Tensor& tensor : tensors) {
        CHECK(engine->merge(tensor.memory).in_state[static_cast<std::size_t>(State::absent)] == 0);
        CHECK(tensor.memory[tensor.bytes - 1] == tensor.value);
      }
      const bool reached = inject->calls(name) >= nth;
      for (const Tensor& tensor : tensors) engine->free(tensor.memory);
      const Snapshot shot = engine->inspect().snapshot();
      CHECK(shot.ranges == 0 && shot.slots_used == 0 && shot.handles.copies == 0);
      engine->detach();
      CHECK(engine->drained());
      if (!reached) break;
    }
  }
}

namespace {
// Two vTensors of a page that were written and left.
std::array<Range*, 2> left_behind(Engine& engine) {
  std::array<Range*, 2> ranges;
  for (Range*& range : ranges) {
    void* memory = engine.allocate(kChunk);
    std::memset(memory, 5, kChunk);
    range = engine.find(memory);
  }
  engine.evict_all();
  return ranges;
}
}  // namespace

TEST(what_goes_on_failing_is_borrowed) {
  // A plan's copy that failed puts one of them out of step with the other: each would be tried again while the other is borrowed.
  InjectDriver* inject = nullptr;
  auto engine = make_engine(8, false, 0, &inject);
  const auto [one, other] = left_behind(*engine);
  inject->fail("poll_in", 1, 1);
  const PlannedMove move{one, one->serial, 0, 1};
  engine->move_by_plan({}, {&move, 1});
  usleep(20000);
  engine->move_by_plan({}, {});
  inject->fail("poll_in", 1, std::uint64_t{1} << 60);
  const Use uses[] = {{one, 0, 1, false, false}, {other, 0, 1, false, false}};
  engine->pin_and_fetch(uses, "test");
  for (const Use& use : uses) {
    CHECK(reinterpret_cast<const char*>(use.range->base)[kChunk - 1] == 5);
    engine->unpin(use);
    engine->free(reinterpret_cast<void*>(use.range->base));
  }
  engine->detach();
  CHECK(engine->drained());
}

TEST(a_touch_of_what_nothing_brings_back_ends_the_program) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);  // instead of standing for ever
    if (freopen("/dev/null", "w", stderr) == nullptr) _exit(0);
    InjectDriver* inject = nullptr;
    Engine* engine = adopt(make_engine(8, false, 0, &inject));
    arm_fault_handler();
    const Range* range = left_behind(*engine)[0];
    inject->fail("copy_in", 1, std::uint64_t{1} << 60);
    inject->fail("map_host", 1, std::uint64_t{1} << 60);
    (void)*reinterpret_cast<volatile char*>(range->base);
    _exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(status != 0 && !(WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM));
}

int main() { return run_native_tests(); }
