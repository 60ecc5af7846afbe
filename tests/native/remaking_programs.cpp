// Random programs of operations that can be run again, dropped and disturbed at any moment, against what their values must be.
//
// An operation is arithmetic on one number a tensor, which fills all of its memory; so what a tensor must hold is known without
// memory, and what it does hold shows whether anything was lost, read too early, or made of the wrong sources. No torch.

#include <cstring>
#include <random>
#include <thread>

#include "check.h"
#include "device/driver_host.h"
#include "engine/engine.h"
#include "process/fault_handler.h"
#include "process/registry.h"
#include "recipes/making.h"
#include "testing/driver_inject.h"

using namespace vt;

namespace {

constexpr Bytes kChunk = 4096;
using Value = std::uint64_t;

Value mix(Value a, Value b) {
  a ^= b + 0x9e3779b97f4a7c15ull + (a << 6) + (a >> 2);
  return a * 0xff51afd7ed558ccdull ^ (a >> 32);
}

struct Arithmetic final : Operation {
  Value id = 0;
  Bytes bytes = 0;           // of what it makes; 0: it overwrites its first source
  Value of(const std::vector<Value>& sources) const {
    Value value = id;
    for (const Value source : sources) value = mix(value, source);
    return value;
  }
};

void fill(const Range& range, Value value) {
  auto* words = reinterpret_cast<Value*>(range.base);
  std::fill_n(words, range.bytes / sizeof(Value), value);
}

Value first_word(const Range& range) { return *reinterpret_cast<const Value*>(range.base); }

bool holds(const Range& range, Value value) {
  const auto* words = reinterpret_cast<const Value*>(range.base);
  return std::all_of(words, words + range.bytes / sizeof(Value), [&](Value word) { return word == value; });
}

Use use_of(Range& range, bool write = false) { return {&range, 0, range.chunks, write, false}; }

struct Runner final : Remaker {
  explicit Runner(Engine& given) : engine(given) {}
  Engine& engine;
  std::atomic<std::size_t> steps{0}, longest{0};

  void run(const Recipes::Run& run, const Take& take, bool) override {
    longest = std::max(longest.load(), run.entries.size());
    for (int attempt = 0; attempt < 3; ++attempt) {
      try {
        return run_once(run, take);
      } catch (const OutOfMemory&) {
      }
    }
    CHECK(!"a failed call was not survived");
  }
  void run_once(const Recipes::Run& run, const Take& take) {
    Making making(run);
    std::vector<Range*> mine;
    struct Clean {
      Runner& runner;
      std::vector<Range*>& ranges;
      ~Clean() {
        for (Range* range : ranges) runner.release(*range);
      }
    } clean{*this, mine};
    for (std::size_t at = 0; at < run.entries.size(); ++at) {
      const auto& operation = static_cast<const Arithmetic&>(*run.entries[at].step->operation);
      std::vector<Value> values;
      for (std::size_t i = 0; i < run.entries[at].step->sources.size(); ++i) {
        const Use use = use_of(making.source(at, i), operation.bytes == 0 && i == 0);
        engine.pin_and_fetch({&use, 1}, "again");
        values.push_back(first_word(*use.range));
        engine.unpin(use);
      }
      Range* range = nullptr;
      if (operation.bytes > 0) {
        range = engine.find(engine.allocate(operation.bytes, "again", Lane::none, true));
        fill(*range, operation.of(values));
        mine.push_back(range);
        CHECK(making.put(at, 0, *range));
      } else {
        fill(making.source(at, 0), operation.of(values));
        making.overwrote(at, 0, 0);
      }
      ++steps;
      making.settle(at, take, [&](Range& made) {
        std::erase(mine, &made);
        release(made);
      });
    }
  }
  void release(Range& range) {
    range.pins.fetch_sub(1);
    engine.free(reinterpret_cast<void*>(range.base));
  }
};

struct Tensor {
  Range* range;
  Value value;
  bool given_away = false;
};

// What an operation reads, and what it must find there.
struct Sources {
  std::vector<Use> uses;
  std::vector<Range*> ranges;
  std::vector<Value> values;

  void add(const Tensor& tensor, bool write = false) {
    uses.push_back(use_of(*tensor.range, write));
    ranges.push_back(tensor.range);
    values.push_back(tensor.value);
  }
  void fetch(Engine& engine, const char* operation) const {
    engine.pin_and_fetch(uses, operation);
    for (std::size_t i = 0; i < uses.size(); ++i) CHECK(holds(*uses[i].range, values[i]));
  }
  void release(Engine& engine) const {
    for (const Use& use : uses) engine.unpin(use);
  }
};

// By an operation that is seen. Raises OutOfMemory where a call of the driver fails.
Tensor make_of(Engine& engine, const Sources& sources, std::unique_ptr<Arithmetic> operation) {
  const Value value = operation->of(sources.values);
  const Bytes bytes = operation->bytes;
  sources.fetch(engine, "make");
  const auto step = engine.remake().begin(std::move(operation), sources.ranges);
  Range* range = nullptr;
  try {
    range = engine.find(engine.allocate(bytes, "make", Lane::none, true));
  } catch (const OutOfMemory&) {
    sources.release(engine);
    throw;
  }
  fill(*range, value);
  if (step != nullptr) engine.remake().end(step, {&range, 1});
  range->pins.fetch_sub(1);
  sources.release(engine);
  return {range, value};
}

class Program {
 public:
  Program(Engine& engine, std::uint32_t seed, bool alone) : engine_(engine), random_(seed), alone_(alone) {}
  ~Program() {
    for (const Tensor& tensor : tensors_) free(tensor);
  }

  void steps(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      step();
      if (alone_ && i % 16 == 0) CHECK(engine_.inspect().validate() == "");
    }
    for (const Tensor& tensor : tensors_) look(tensor);
  }

 private:
  std::uint32_t draw(std::uint32_t below) { return static_cast<std::uint32_t>(random_() % below); }
  Tensor& any() { return tensors_[draw(static_cast<std::uint32_t>(tensors_.size()))]; }
  void free(const Tensor& tensor) { engine_.free(reinterpret_cast<void*>(tensor.range->base)); }

  void step() {
    if (tensors_.size() < 3) return make();
    switch (draw(16)) {
      case 0: case 1: case 2: case 3: return make();
      case 4: case 5: return overwrite(true);
      case 6: return overwrite(false);
      case 7: case 8: return forget();
      case 9: case 10: case 11: return drop(any());
      case 12:
        for (const Tensor& tensor : tensors_) drop(tensor);
        return;
      case 13: return look(any());
      case 14: return touch(any());
      default: return disturb();
    }
  }

  void make() {
    auto operation = std::make_unique<Arithmetic>();
    operation->id = random_();
    operation->bytes = (1 + draw(3)) * kChunk - draw(2) * sizeof(Value);
    Sources sources;
    pick(&sources);
    try {
      tensors_.push_back(make_of(engine_, sources, std::move(operation)));
    } catch (const OutOfMemory&) {  // a call of the driver failed
    }
  }

  // Seen, or as by an operation that cannot be run again.
  void overwrite(bool seen) {
    Tensor& target = any();
    auto operation = std::make_unique<Arithmetic>();
    operation->id = random_();
    Sources sources;
    sources.add(target, true);
    pick(&sources);
    const Value value = operation->of(sources.values);
    sources.fetch(engine_, "overwrite");
    std::shared_ptr<Step> step;
    if (seen) step = engine_.remake().begin(std::move(operation), sources.ranges, target.range);
    engine_.remake().before_write(*target.range, step.get());
    fill(*target.range, value);
    target.value = value;
    if (step != nullptr) engine_.remake().end(step, {&target.range, 1});
    sources.release(engine_);
  }

  void pick(Sources* sources) {
    if (tensors_.empty()) return;
    for (std::uint32_t i = draw(3); i > 0; --i) sources->add(any());
  }

  void forget() {
    std::swap(any(), tensors_.back());
    free(tensors_.back());
    tensors_.pop_back();
  }
  void drop(const Tensor& tensor) {
    const std::uint32_t first = draw(3) == 0 ? draw(tensor.range->chunks) : 0;
    const PlannedMove move{tensor.range, tensor.range->serial, first, tensor.range->chunks};
    engine_.remake().drop({&move, 1});
  }
  void look(const Tensor& tensor) {
    if (engine_.try_pin(*tensor.range, false)) {
      drop(tensor);
      CHECK(tensor.range->missing.load() == 0 || !alone_);  // what is pinned stays
      CHECK(holds(*tensor.range, tensor.value));
      return engine_.unpin(whole(*tensor.range, false));
    }
    const Use use = use_of(*tensor.range);
    engine_.pin_and_fetch({&use, 1}, "look");
    CHECK(holds(*tensor.range, tensor.value));
    engine_.unpin(use);
  }
  // Past all operations. (ThreadSanitizer wants no memory allocated in handlers of signals, which this one is safe to do: the
  // signal comes from the program's own access.)
  void touch(const Tensor& tensor) {
#if defined(__SANITIZE_THREAD__)
    look(tensor);
#else
    CHECK(holds(*tensor.range, tensor.value));
#endif
  }
  // Whoever has the address writes there, and tells nobody.
  void give_away(Tensor& tensor) {
    if (!tensor.given_away && draw(3) != 0) return;
    engine_.export_address(reinterpret_cast<const void*>(tensor.range->base));
    tensor.given_away = true;
    if (!alone_) return;  // others may make it leave, and the sanitizer knows nothing of protected pages
    tensor.value = random_();
    fill(*tensor.range, tensor.value);
  }
  void disturb() {
    switch (draw(alone_ ? 6 : 2)) {
      case 0: return engine_.evict_all();
      case 1: return give_away(any());
      case 2: return resize(4 + draw(12));
      case 3: {
        engine_.remake().suspend(false);
        engine_.remake().resume();
        return;
      }
      case 4: {
        const Tensor& tensor = any();
        engine_.remake().check(*tensor.range, [&](const Content&, Range& made) { CHECK(holds(made, tensor.value)); });
        return;
      }
      default: return;
    }
  }

  // Where nothing is copied, what cannot be recomputed stays.
  void resize(std::size_t chunks) {
    try {
      engine_.resize(chunks);
    } catch (const OutOfMemory&) {
      CHECK(engine_.remake().weighs());
    }
  }

  Engine& engine_;
  std::mt19937_64 random_;
  bool alone_;
  std::vector<Tensor> tensors_;
};

struct World {
  Engine* engine;
  InjectDriver* faults;
  Runner* runner;

  explicit World(std::size_t budget = 8, Leaving leaving = Leaving::copy) {
    auto inject = std::make_unique<InjectDriver>(std::make_unique<HostDriver>(kChunk, 0));
    faults = inject.get();
    EngineConfig config;
    config.budget_chunks = budget;
    config.leaving = leaving;
    arm_fault_handler();
    engine = adopt_aside(std::make_unique<Engine>(std::move(inject), make_ram_store(kChunk, 512 * kChunk), config));
    auto made = std::make_unique<Runner>(*engine);
    runner = made.get();
    engine->remake().use(std::move(made));
  }
  // Nothing is left.
  void close() {
    engine->remake().suspend(true);
    engine->detach();
    CHECK(engine->drained());
  }
};

constexpr Leaving kWays[] = {Leaving::copy, Leaving::cheaper, Leaving::drop};

}  // namespace

TEST(programs_of_one_thread) {
  std::size_t ran = 0;
  for (std::uint32_t seed = 0; seed < 90; ++seed) {
    World world(4 + seed % 9, kWays[seed % 3]);
    Program(*world.engine, seed, true).steps(300);
    ran += world.runner->steps;
    world.close();
  }
  CHECK(ran > 5000);
}

TEST(programs_of_several_threads) {
  for (std::uint32_t seed = 0; seed < 18; ++seed) {
    World world(8, kWays[seed % 3]);
    {
      std::vector<std::thread> threads;
      for (std::uint32_t t = 0; t < 3; ++t) {
        threads.emplace_back([&world, seed, t] { Program(*world.engine, 100 * seed + t, false).steps(200); });
      }
      for (std::thread& thread : threads) thread.join();
    }
    world.close();
  }
}

TEST(every_call_of_the_driver_fails_once) {
  for (const char* call :
       {"map", "unmap", "protect", "map_host", "unmap_host", "copy_out", "copy_in", "create", "wait", "poll_out"}) {
    for (std::uint64_t nth = 1; nth <= 60; nth += 7) {
      World world(6, kWays[nth % 3]);
      world.faults->fail(call, nth, 1);
      Program(*world.engine, static_cast<std::uint32_t>(nth), true).steps(60);
      world.close();
    }
  }
}

// Each step's weights are made of those before and of gradients, which the program frees when the new ones have left.
TEST(what_was_cheap_to_make_when_it_left_stays_so) {
  World world(10, Leaving::drop);
  Engine& engine = *world.engine;
  const auto made_of = [&](const std::vector<Tensor>& tensors) {
    auto operation = std::make_unique<Arithmetic>();
    operation->bytes = kChunk;
    Sources sources;
    for (const Tensor& tensor : tensors) sources.add(tensor);
    return make_of(engine, sources, std::move(operation));
  };
  const auto free_all = [&](std::vector<Tensor>& tensors) {
    for (const Tensor& tensor : tensors) engine.free(reinterpret_cast<void*>(tensor.range->base));
    tensors.clear();
  };
  std::vector<Tensor> weights, gradients, others;
  for (int layer = 0; layer < 4; ++layer) weights.push_back(made_of({}));
  for (int iteration = 0; iteration < 40; ++iteration) {
    for (const Tensor& weight : weights) {
      for (int i = 0; i < 4; ++i) others.push_back(made_of({i == 0 ? weight : others.back()}));
      gradients.push_back(made_of({others.back(), weight}));
      free_all(others);
    }
    std::vector<Tensor> before = std::move(weights);
    weights.clear();
    for (std::size_t layer = 0; layer < 4; ++layer) weights.push_back(made_of({before[layer], gradients[layer]}));
    for (int i = 0; i < 6; ++i) others.push_back(made_of({}));  // the weights leave
    free_all(before);
    free_all(gradients);
    free_all(others);
  }
  CHECK(world.runner->steps > 0);
  CHECK(world.runner->longest <= Recipes::kMostPriced);
  free_all(weights);
  world.close();
}

// Each writes a part of it, as far as it knows. What is there then neither has made.
TEST(what_two_overwrite_at_the_same_time_nobody_makes_again) {
  struct Writer {
    Engine& engine;
    const Tensor& tensor;
    bool seen;
    Sources sources{};
    std::shared_ptr<Step> step{};

    void begin() {
      sources.add(tensor, true);
      engine.pin_and_fetch(sources.uses, "overwrite");
      if (seen) step = engine.remake().begin(std::make_unique<Arithmetic>(), sources.ranges, tensor.range);
      if (tensor.range->known.load()) engine.remake().before_write(*tensor.range, step.get());
    }
    void end() {
      if (step != nullptr) engine.remake().end(std::exchange(step, nullptr), {&tensor.range, 1});
      sources.release(engine);
    }
  };
  for (int way = 0; way < 8; ++way) {
    World world;
    Engine& engine = *world.engine;
    auto operation = std::make_unique<Arithmetic>();
    operation->bytes = 2 * kChunk;
    Tensor tensor = make_of(engine, {}, std::move(operation));
    Writer one{engine, tensor, (way & 1) == 0}, other{engine, tensor, (way & 2) == 0 || (way & 1) != 0};
    one.begin();
    other.begin();
    tensor.value = 7;
    fill(*tensor.range, tensor.value);
    (way & 4 ? one : other).end();
    (way & 4 ? other : one).end();
    const PlannedMove move{tensor.range, tensor.range->serial, 0, tensor.range->chunks};
    engine.remake().drop({&move, 1});
    Sources look;
    look.add(tensor);
    look.fetch(engine, "look");
    look.release(engine);
    CHECK(world.runner->steps == 0);
    // Who overwrites it alone afterwards starts from what is there.
    Writer third{engine, tensor, true};
    third.begin();
    third.end();
    engine.free(reinterpret_cast<void*>(tensor.range->base));
    world.close();
  }
}

TEST(a_managed_session_ends_with_what_was_dropped) {
  World world(6);
  {
    Program program(*world.engine, 5, true);
    program.steps(50);
    world.engine->remake().suspend(true);
    world.engine->detach();
    program.steps(0);
  }
  CHECK(world.engine->drained());
}

int main() { return run_native_tests(); }
