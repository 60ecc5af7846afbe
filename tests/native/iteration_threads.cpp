// Iterations where threads meet: several run them under one budget, each may become the recorded one at any moment, and plans are
// installed and forgotten meanwhile. Run under ThreadSanitizer and AddressSanitizer by `make sanitize`.

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <thread>

#include "check.h"
#include "device/driver_host.h"
#include "engine/engine.h"
#include "iteration/managed.h"
#include "process/registry.h"
#include "team.h"
#include "iteration/operators.h"
#include "iteration/recording.h"

using namespace vt;

namespace {

constexpr Bytes kChunk = 4096;
constexpr std::uint32_t kTensors = 4;  // a forward pass makes them, a backward pass uses and frees them in reverse
constexpr std::uint32_t kMany = 20;    // in so many an iteration finds its place again

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
      begin_row(recording, thread, engine, Lane::none);
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
  if (const Recording recording{thread}; recording && frame.row != kNone) recording->log().row_ends(frame.row);
}

char* make(Engine& engine, char value) {
  char* memory = nullptr;
  operation(engine, "make", nullptr, [&](char*) {
    Thread& thread = this_thread();
    if (const Recording recording{thread}) begin_row(recording, thread, engine, Lane::none);
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

// `peeks_at`: before that tensor is made, the one before is looked at, which no plan knows of.
void iterate(Engine& engine, char seed, std::uint32_t tensors = kTensors, std::uint32_t peeks_at = kNone) {
  std::vector<char*> made;
  for (std::uint32_t k = 0; k < tensors; ++k) {
    if (k == peeks_at) operation(engine, "peek", made.back(), [](char*) {});
    made.push_back(make(engine, static_cast<char>(seed + static_cast<char>(k))));
  }
  for (std::uint32_t k = tensors; k-- > 0;) {
    operation(engine, "read", made[k],
              [&](const char* m) { CHECK(m[2 * kChunk - 1] == static_cast<char>(seed + static_cast<char>(k))); });
    release(engine, made[k]);
  }
}

// Rows: make, fill for each tensor; read for each. The first tensor leaves after it was filled and comes back before it is read.
std::unique_ptr<Plan> make_plan(std::uint32_t tensors = kTensors) {
  auto plan = std::make_unique<Plan>();
  std::vector<OpId> operations;
  std::vector<std::uint32_t> births;
  for (std::uint32_t k = 0; k < tensors; ++k) {
    operations.insert(operations.end(), {operator_id("make"), operator_id("fill")});
    births.insert(births.end(), {1, 0});
    plan->births.push_back(k);
    plan->tensors.push_back({.bytes = 2 * kChunk, .keep = true, .used = true});
  }
  operations.resize(3 * tensors, operator_id("read"));
  births.resize(3 * tensors, 0);
  plan->set_rows(operations, births);
  plan->out = {{{0, 0, 2}}, std::array{2u}, plan->rows()};
  plan->in = {{{0, 0, 2}}, std::array{plan->rows() - 3}, plan->rows()};
  return plan;
}

// The next iteration follows a plan.
Engine& begin_planned(std::size_t budget, std::uint32_t tensors = kTensors) {
  Engine& engine = begin_session(budget);
  install_plan(make_plan(tensors));
  end_iteration(engine);
  return engine;
}

void end_session(Engine& engine) {
  record_only(nullptr);
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
  CHECK(end_iteration(engine) == Finding::telling);
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
  CHECK(counters.plans == 1 && counters.planned_iterations == 5 && counters.deviations == 0);
  CHECK(engine.inspect().snapshot().counters.arrivals == 2 * 5);
  end_session(engine);
}

TEST(an_iteration_that_is_another_leaves_the_plan_and_returns_at_the_next_boundary) {
  Engine& engine = begin_planned(6);
  iterate(engine, 1);
  end_iteration(engine);
  release(engine, make(engine, 5));  // too short to be one
  end_iteration(engine);
  iterate(engine, 1);
  end_iteration(engine);
  CHECK(plan_counters().planned_iterations == 2 && plan_counters().deviations == 1);
  end_session(engine);
}

TEST(an_iteration_that_does_more_finds_back_into_its_plan) {
  Engine& engine = begin_planned(2 * kMany - 2, kMany);
  std::uint64_t arrivals = 0;
  for (const std::uint32_t peeks_at : {kNone, 1u, kNone, 8u}) {
    iterate(engine, 1, kMany, peeks_at);
    end_iteration(engine);
    CHECK(engine.inspect().snapshot().counters.arrivals == (arrivals += 2));
  }
  CHECK(plan_counters().planned_iterations == 2 && plan_counters().deviations == 2 && plan_counters().rejoined == 2);
  CHECK(plan_counters().left_op == operator_id("peek"));
  end_session(engine);
}

TEST(an_iteration_that_does_less_finds_back_into_its_plan) {
  Engine& engine = begin_planned(2 * kMany - 4, kMany);
  iterate(engine, 1, kMany - 1);  // leaves where it reads too early, and is back when it has read as often as tells a place
  end_iteration(engine);
  CHECK(plan_counters().planned_iterations == 0 && plan_counters().deviations == 1 && plan_counters().rejoined == 1);
  CHECK(engine.inspect().snapshot().counters.arrivals == 2);
  iterate(engine, 1, kMany);
  end_iteration(engine);
  CHECK(plan_counters().planned_iterations == 1 && plan_counters().deviations == 1);
  end_session(engine);
}

TEST(what_was_allocated_on_the_way_is_none_of_the_plan_in_the_next_iteration_either) {
  Engine& engine = begin_session(4 * kMany);
  const auto plan = make_plan(kMany);
  Recorder recorder;
  Binding binding(recorder);
  std::vector<Range*> ranges;
  const auto birth = [&](const Plan* followed) {
    recorder.row(operator_id("make"));
    ranges.push_back(engine.find(engine.allocate(2 * kChunk)));
    recorder.born(*ranges.back());
    binding.born(*ranges.back(), followed);
  };
  recorder.begin(1, {});
  binding.begin({});
  binding.bind(*plan);
  birth(plan.get());
  binding.leave();
  birth(nullptr);  // it is not planned, and the next is the plan's second
  birth(nullptr);
  binding.rejoin(*plan, -1, 2);
  birth(plan.get());
  CHECK(binding.present().size() == 3 && binding.present()[1].range == ranges[2] && binding.present()[2].range == ranges[3]);
  Plan next = *make_plan(3);
  next.births.clear();
  for (std::uint32_t t = 0; t < 3; ++t) next.tensors[t].previous = t;
  recorder.begin(2, ranges);
  binding.begin(ranges);
  binding.bind(next);
  CHECK(binding.present().size() == 3 && binding.present()[0].range == ranges[0]);
  CHECK(binding.present()[1].range == ranges[2] && binding.present()[2].range == ranges[3]);
  for (Range* range : ranges) engine.free(reinterpret_cast<char*>(range->base), true);
  end_session(engine);
}

TEST(iterations_that_are_never_alike_are_worth_a_plan_now_and_then) {
  using Worth = Sightings::Worth;
  Sightings sightings;
  std::vector<std::uint64_t> worth;
  for (std::uint64_t hash = 1; hash <= 200; ++hash) {
    if (sightings.look(hash, true, true) == Worth::analysing) worth.push_back(hash);
  }
  CHECK(worth == std::vector<std::uint64_t>({6, 12, 24, 48, 96, 192}));
  sightings.forget();
  for (std::uint64_t hash = 1; hash <= 200; ++hash) CHECK(sightings.look(hash, true, false) == Worth::nothing);  // there is one
  sightings.forget();
  for (std::uint64_t hash = 1; hash < 5; ++hash) CHECK(sightings.look(hash, false, true) == Worth::nothing);
  CHECK(sightings.look(5, false, true) == Worth::timing && sightings.look(6, true, true) == Worth::analysing);
  sightings.forget();
  CHECK(sightings.look(1, true, true) == Worth::nothing && sightings.look(1, true, true) == Worth::analysing);
  for (std::uint64_t hash = 2; hash < 60; ++hash) CHECK(sightings.look(hash, true, true) == Worth::nothing);
  sightings.forget();
  for (int k = 1; k <= 16; ++k) {
    const bool turn = k == 2 || k == 4 || k == 8 || k == 16;
    CHECK(sightings.look(1, true, false) == (turn ? Worth::analysing : Worth::nothing));
  }
  sightings.planned(1);
  CHECK(sightings.look(1, true, false) == Worth::analysing);
}

TEST(a_place_is_the_nearest_of_those_alike_and_not_far_back) {
  constexpr std::uint32_t kPeriod = 20;
  std::vector<StepId> steps;  // five layers, and a head
  for (std::uint32_t row = 0; row < 5 * kPeriod; ++row) steps.push_back(row % kPeriod);
  for (std::uint32_t row = 0; row < kPeriod; ++row) steps.push_back(100 + row);
  const Steps plan(steps, std::vector<std::uint32_t>(steps.size(), 0));
  const auto ends_at = [&](std::uint32_t row) {
    Trail trail;
    for (std::uint32_t k = row + 1 - std::uint32_t{Trail::kLong}; k <= row; ++k) trail.add(steps[k]);
    return trail;
  };
  for (const std::int64_t off : {-9, -1, 0, 1, 9}) CHECK(plan.find(ends_at(58), 58 + off, 0) == 58);
  CHECK(plan.find(ends_at(58), 500, 0) == 98 && plan.find(ends_at(58), -500, -900) == 18);
  CHECK(plan.find(ends_at(58), 60, 59) == 78);         // the nearest is too far back
  CHECK(plan.find(ends_at(118), 0, 0) == 118);         // there is one such place
  CHECK(plan.find(ends_at(118), 119, 119) == kNone);
  Trail trail = ends_at(118);
  trail.add(7);
  CHECK(plan.find(trail, 118, 0) == kNone && plan.find(Trail{}, 0, 0) == kNone);
}

TEST(what_was_passed_over_is_made_up_for_where_nothing_undid_it) {
  Plan plan;
  plan.at = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  plan.out = {{{0, 0, 1}, {0, 1, 2}, {1, 0, 2}, {2, 0, 1}}, std::array{1u, 2u, 3u, 8u}, 10};
  plan.in = {{{3, 0, 1}, {1, 0, 2}, {4, 0, 1}}, std::array{0u, 4u, 5u}, 10};
  plan.drop = {{{4, 0, 1}, {5, 0, 1}}, std::array{6u, 6u}, 10};
  plan.make = {{{3, 0, 1}}, std::array{3u}, 10};
  const auto tensors = [](const std::vector<Plan::Part>& parts) {
    std::vector<std::uint32_t> found;
    for (const auto& part : parts) found.push_back(part.tensor);
    return found;
  };
  using Tensors = std::vector<std::uint32_t>;
  const Missed missed(plan, 1, 8);
  CHECK(tensors(missed.out) == Tensors({0, 0}) && tensors(missed.in) == Tensors({1}));
  CHECK(tensors(missed.drop) == Tensors({4, 5}));
  const Missed nothing(plan, 8, 3);
  CHECK(nothing.out.empty() && nothing.in.empty() && nothing.drop.empty());
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
    if (plan_counters().plans % 16 == 0) forget_plans();
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
