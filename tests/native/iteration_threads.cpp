// Iterations where threads meet: several run them under one budget, each may become the recorded one at any moment, and plans are
// installed and forgotten meanwhile. Run under ThreadSanitizer and AddressSanitizer by `make sanitize`.

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "check.h"
#include "device/driver_host.h"
#include "engine/engine.h"
#include "iteration/managed.h"
#include "process/registry.h"
#include "team.h"
#include "iteration/thread_state.h"

using namespace vt;

namespace {

constexpr Bytes kChunk = 4096;
constexpr std::uint32_t kTensors = 4;  // a forward pass makes them, a backward pass uses and frees them in reverse

Engine& begin_session(std::size_t budget, double link = 0, Team team = nullptr) {
  EngineConfig config;
  config.budget_chunks = budget;
  auto driver = std::make_unique<HostDriver>(kChunk, link, team);
  Engine* engine = adopt(std::make_unique<Engine>(std::move(driver), make_ram_store(kChunk, 4096 * kChunk), config));
  begin_recording();
  return *engine;
}

// What torch_observer.cpp does around an operation: a row, its uses, the kernel, its end.
template <typename Kernel>
void operation(Engine& engine, const char* name, char* memory, Kernel kernel) {
  Thread& thread = this_thread();
  thread.frames.push_back({0, false, name, operator_id(name), kNone});
  engine.tick();
  if (memory != nullptr) {
    Range* range = engine.find(memory);
    Use use = whole(*range, true);
    if (const Recording recording{thread}) {
      begin_row(recording, thread, engine, Ticket::Lane::none);
      recording->use(*range, use);
    }
    const Stall stall(thread);
    if (!engine.try_pin(*range, true)) {
      use = engine.part(*range, 0, range->bytes, true);
      engine.pin_and_fetch({&use, 1}, name);
    }
    kernel(memory);
    engine.unpin(use);
  } else {
    kernel(memory);
  }
  const Frame frame = thread.frames.back();
  thread.frames.pop_back();
  if (const Recording recording{thread}; recording && frame.row != kNone) recording->row_ends(frame.row);
}

char* make(Engine& engine, char value) {
  char* memory = nullptr;
  operation(engine, "make", nullptr, [&](char*) {
    Thread& thread = this_thread();
    if (const Recording recording{thread}) begin_row(recording, thread, engine, Ticket::Lane::none);
    memory = static_cast<char*>(engine.allocate(2 * kChunk));
    if (const Recording recording{thread}) recording->born(*engine.find(memory));
  });
  operation(engine, "fill", memory, [&](char* m) { std::memset(m, value, 2 * kChunk); });
  return memory;
}

void release(Engine& engine, char* memory) {
  bool keep = true;
  if (const Recording recording{this_thread()}) keep = recording->died(*engine.find(memory));
  engine.free(memory, keep);
}

void iterate(Engine& engine, char seed) {
  char* tensors[kTensors];
  for (std::uint32_t k = 0; k < kTensors; ++k) tensors[k] = make(engine, static_cast<char>(seed + static_cast<char>(k)));
  for (std::uint32_t k = kTensors; k-- > 0;) {
    operation(engine, "read", tensors[k],
              [&](const char* m) { CHECK(m[2 * kChunk - 1] == static_cast<char>(seed + static_cast<char>(k))); });
    release(engine, tensors[k]);
  }
}

// Rows: make, fill for each tensor; read for each. The first tensor leaves after it was filled and comes back before it is read.
std::unique_ptr<Plan> make_plan() {
  auto plan = std::make_unique<Plan>();
  std::uint64_t hash = Recorder::kSeed;
  const auto row = [&](const char* name) { plan->hash.push_back(hash = Recorder::mix(hash, operator_id(name))); };
  for (std::uint32_t k = 0; k < kTensors; ++k) {
    row("make");
    hash = Recorder::mix(hash, Recorder::kBirth);
    row("fill");
    plan->births.push_back(k);
    plan->keep.push_back(1);
    plan->lasting.push_back(0);
    plan->serial.push_back(0);
    plan->previous.push_back(kNone);
    plan->bytes.push_back(2 * kChunk);
  }
  for (std::uint32_t k = 0; k < kTensors; ++k) row("read");
  plan->final_hash = hash;
  plan->out = {{0, 0, 2}};
  plan->in = {{0, 0, 2}};
  plan->out_at.assign(plan->hash.size() + 1, 1);
  plan->out_at[0] = plan->out_at[1] = plan->out_at[2] = 0;
  plan->in_at.assign(plan->hash.size() + 1, 1);
  std::fill(plan->in_at.begin(), plan->in_at.end() - 3, 0);
  return plan;
}

void end_session(Engine& engine) {
  stop_recording();
  const Snapshot shot = engine.inspect().snapshot();
  CHECK(shot.ranges == 0 && shot.slots_used == 0);
  retire_current();
  CHECK(engine.drained());
  CHECK(end_iteration(engine) == Finding::nothing);  // too late: not even looked at
}

}  // namespace

TEST(a_plan_is_followed_from_the_next_boundary_on) {
  Engine& engine = begin_session(6);  // the peak is 8
  end_iteration(engine);
  iterate(engine, 1);
  CHECK(end_iteration(engine) == Finding::nothing);
  iterate(engine, 1);
  CHECK(end_iteration(engine) == Finding::repeated);
  const Recorder recorded = last_iteration();
  CHECK(recorded.rows() == 3 * kTensors && recorded.births().size() == kTensors && recorded.uses().size() == 2 * kTensors);
  CHECK(recorded.hash() == make_plan()->final_hash);
  install_plan(make_plan());
  for (int k = 0; k < 5; ++k) {
    end_iteration(engine);
    iterate(engine, 1);
  }
  end_iteration(engine);
  const PlanCounters counters = plan_counters();
  CHECK(counters.installed == 1 && counters.planned == 5 && counters.deviations == 0);
  CHECK(engine.inspect().snapshot().counters.prefetches == 2 * 5);
  end_session(engine);
}

TEST(an_iteration_that_is_another_leaves_the_plan_and_returns_at_the_next_boundary) {
  Engine& engine = begin_session(6);
  install_plan(make_plan());
  end_iteration(engine);
  iterate(engine, 1);
  end_iteration(engine);
  release(engine, make(engine, 5));  // too short to be one
  end_iteration(engine);
  iterate(engine, 1);
  end_iteration(engine);
  CHECK(plan_counters().planned == 2 && plan_counters().deviations == 1);
  end_session(engine);
}

void take_iterations_over(double link, Team team) {
  Engine& engine = begin_session(16, link, team);
  std::vector<std::thread> threads;
  std::atomic<int> running{4};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int k = 0; k < 400; ++k) {
        iterate(engine, static_cast<char>(10 * t));
        if (k % 3 == 0) end_iteration(engine);
      }
      --running;
    });
  }
  while (running > 0) {
    const Recorder recorded = last_iteration();
    std::uint64_t before = 0;
    for (const auto& row : recorded.all_rows()) {
      CHECK(row.begin_ns >= before && row.last < recorded.rows());
      before = row.begin_ns;
    }
    CHECK(recorded.end_ns() >= before);
    install_plan(make_plan());
    if (plan_counters().installed % 16 == 0) forget_plans();
    CHECK(engine.inspect().validate().empty());
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(plan_counters().iterations > 500);
  end_session(engine);
}

TEST(threads_take_iterations_over_from_each_other) { take_iterations_over(0, nullptr); }
TEST(threads_take_iterations_over_and_lend_their_hands) { take_iterations_over(10e9, team_of_three); }

TEST(a_child_of_a_fork_is_not_held_up_by_what_threads_did) {
  Engine& engine = begin_session(16);
  std::atomic<bool> stop{false};
  std::thread trains([&] {
    while (!stop) {
      iterate(engine, 3);
      end_iteration(engine);
      install_plan(make_plan());
    }
  });
  for (int k = 0; k < 20; ++k) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);  // held up for good, it would be killed
      plan_counters();
      forget_plans();
      operator_id("new in the child");
      CHECK(!recorded(this_thread()));
      _exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  stop = true;
  trains.join();
  end_session(engine);
}

TEST(a_shelf_dies_with_the_last_on_it_whoever_frees_it) {
  constexpr int kThreads = 4, kEach = 3;
  Engine& engine = begin_session(6);
  for (int round = 0; round < 50; ++round) {
    auto* shelf = static_cast<char*>(allocate_managed(engine, 3 * kChunk));
    for (int k = 1; k < kThreads * kEach; ++k) share_managed(engine, shelf + k * 1024);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&engine, shelf, t] {
        for (int k = 0; k < kEach; ++k) free_managed(engine, shelf + (kThreads * k + t) * 1024);
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(engine.inspect().snapshot().ranges == 0);
  }
  end_session(engine);
}

int main() { return run_native_tests(); }
