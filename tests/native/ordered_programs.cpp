// The engine over a device whose work happens late: random programs on several streams, and every value checked by the kernels
// themselves, when they run. A missing wait, a chunk that is used again too early and an unmapping in flight all show up here;
// tests/core/test_mutations.py breaks the engine in each of these ways and wants this program to notice.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <thread>

#include "check.h"
#include "engine/engine.h"

#ifdef VT_STANDIN  // the CUDA driver, over a library that stands in for NVIDIA's
#include "cuda/cuda_slab.h"
#include "cuda/driver_cuda.h"
#include "standin_cuda.h"
#else
#include "testing/driver_late.h"
#endif

using namespace vt;

namespace {

constexpr Bytes kChunk = 4 << 10;

#ifdef VT_STANDIN
StandinCuda& standin() { return *standin_cuda(); }
struct Device {
  LateWork& work = standin().work;
  std::unique_ptr<Driver> make(std::uint32_t seed, std::size_t most_chunks, bool places) {
    standin().begin(seed);
    standin().limit = most_chunks * kChunk;
    standin().host_node = places ? 1 : -1;
    return std::make_unique<CudaDriver>(kChunk, 0, VT_STANDIN);
  }
  void* stream() { return reinterpret_cast<void*>(work.add_lane() + 1); }
};
#else
struct Device {
  LateWork own;
  LateWork& work = own;
  std::unique_ptr<Driver> make(std::uint32_t seed, std::size_t most_chunks, bool places) {
    own.begin(seed);
    return std::make_unique<LateDriver>(kChunk, most_chunks, own, Compute::late, places);
  }
  void* stream() { return reinterpret_cast<void*>(++streams); }
  std::uintptr_t streams = 0;
};
#endif

struct Tensor {
  Range* range;
  std::uint64_t serial;
  char* data;
  std::uint64_t value = 0;  // what the kernels that were asked for so far leave in it; 0: nothing was written yet
  Lane last = Lane::none;
};

// A program and its device. Kernels check what they read when they run; what is wrong is counted.
class Program {
 public:
  // `places`: the device uses memory of the host in place. `strict`: absent addresses lead nowhere.
  Program(std::uint32_t seed, std::size_t budget, std::size_t streams = 2, bool places = false, bool strict = false)
      : random_(seed), budget_(budget) {
    EngineConfig config;
    config.budget_chunks = budget;
    config.strict = strict;
    // Memory that says it is pinned, within which copies side by side are one.
    const Pinning pinned{[](void*, Bytes) { return true; }, [](void*) {}};
    engine_ = std::make_unique<Engine>(device_.make(seed + 1, 4 * budget + 64, places),
                                       make_ram_store(kChunk, 4096 * kChunk, places ? Pinning{} : pinned), config);
    for (std::size_t i = 0; i < streams; ++i) streams_.push_back(engine_->streams()->lane(device_.stream()));
  }

  // A stream of another library, and its end, of which nobody tells.
  Lane foreign_stream() {
    streams_.push_back(engine_->streams()->lane(device_.stream(), true));
    return streams_.back();
  }
  void end_stream(Lane stream) {
    work_.end_lane(lane(stream));
    std::erase(streams_, stream);
    for (Tensor& tensor : tensors_) {
      if (tensor.last != stream) continue;
      work_.drain();  // the program has waited for it
      tensor.last = Lane::none;
    }
  }

  std::size_t draw(std::size_t below) { return random_() % below; }
  Lane any_stream() { return streams_[draw(streams_.size())]; }
  Lane stream(std::size_t index) const { return streams_.at(index); }
  const Tensor& tensor(std::size_t index) const { return tensors_.at(index); }
  std::size_t tensors() const { return tensors_.size(); }
  Engine& engine() { return *engine_; }
  LateWork& work() { return work_; }

  Tensor& allocate(std::size_t chunks, Lane stream) {
    // In some stretches a plan has seats for what is allocated: right or not, free or not.
    if (draw(40) == 0) {
      std::vector<std::uint32_t> number(budget_);
      std::iota(number.begin(), number.end(), 0);
      const auto given = static_cast<std::uint32_t>(draw(budget_ + 1));
      Seats& seats = *engine_->seats();
      sits_ = !sits_;
      sits_ ? seats.begin(8 * budget_, {std::move(number), given}) : given % 2 == 0 ? seats.pause() : seats.end();
    }
    const std::size_t kind = draw(12);
    std::vector<ChunkId> wanted;
    for (std::size_t i = 0; sits_ && kind > 1 && i < chunks; ++i) wanted.push_back(static_cast<ChunkId>((kind + i) % budget_));
    Range*& before = before_[{kind, chunks}];
    auto* data =
        static_cast<char*>(engine_->allocate(chunks * kChunk - draw(kChunk / 2), "test", stream, false, {wanted, before}));
    Range* range = engine_->find(data);
    if (!wanted.empty()) before = range;
    tensors_.push_back({range, range->serial, data, 0, stream});
    return tensors_.back();
  }

  // A new tensor that a kernel fills.
  std::size_t fresh(std::size_t chunks, Lane stream) {
    allocate(chunks, stream);
    run(stream, {tensors_.size() - 1}, {true});
    return tensors_.size() - 1;
  }

  // A new tensor that a kernel fills on another stream than it was allocated on, with no order between the two: the program has
  // waited for the device, so that it knows of nothing the one still does.
  void synchronized(std::size_t chunks, Lane stream, Lane other) {
    work_.drain();
    scratch(chunks, stream);
    allocate(chunks, stream).last = Lane::none;
    run(other, {tensors_.size() - 1}, {true});
  }

  // As the observer does it: pin, come after what brings the arguments, ask for the work, note the use, unpin.
  void run(Lane stream, const std::vector<std::size_t>& arguments, const std::vector<bool>& writes) {
    engine_->tick();
    std::vector<Use> uses, missing;
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      Range& range = *tensors_[arguments[i]].range;
      (engine_->try_pin(range, writes[i]) ? uses : missing).push_back(whole(range, writes[i]));
      if (!missing.empty() && missing.back().range == &range) missing.back().whole = false;
    }
    if (!missing.empty()) engine_->pin_and_fetch(missing, "test");
    uses.insert(uses.end(), missing.begin(), missing.end());
    for (const Use& use : uses) engine_->streams()->ready_on(stream, *use.range);
    for (std::size_t i = 0; i < arguments.size(); ++i) launch(stream, tensors_[arguments[i]], writes[i]);
    engine_->streams()->used(stream);
    for (const Use& use : uses) engine_->streams()->used_on(stream, *use.range);
    engine_->streams()->pulse(stream);
    for (const Use& use : uses) engine_->unpin(use);
  }

  // Of what makes something again, on the stream of whoever needs it: the program knows nothing of it.
  void scratch(std::size_t chunks, Lane stream) {
    allocate(chunks, stream);
    run(stream, {tensors_.size() - 1}, {true});
    drop(tensors_.size() - 1);
  }
  // As what makes something again does it: the program knows nothing of that, and orders nothing.
  void read_again(Lane stream, std::size_t index) {
    Range& range = *tensors_[index].range;
    engine_->streams()->makes_again(stream);
    const Use use = whole(range, false);
    CHECK(engine_->try_pin(range, false));
    engine_->streams()->ready_on(stream, range);
    ask(stream, tensors_[index], false);
    engine_->streams()->used(stream);
    engine_->streams()->used_on(stream, range);
    engine_->streams()->pulse(stream);
    engine_->unpin(use);
    engine_->streams()->read_again(stream, range);
  }

  // By a kernel that nobody sees, on a stream for which the program has recorded the tensor.
  void read_unseen(Lane stream, std::size_t index) {
    const Tensor& tensor = tensors_[index];
    engine_->streams()->record(tensor.data, stream);
    work_.order(lane(stream), work_.end_of(lane(tensor.last)));
    ask(stream, tensors_[index], false);
  }

  // A new tensor that a kernel fills, where a plan wants it.
  std::size_t sit(std::size_t chunks, const std::vector<ChunkId>& wanted, Range* before = nullptr) {
    auto* data = static_cast<char*>(engine_->allocate(chunks * kChunk, "test", streams_[0], false, {wanted, before}));
    Range* range = engine_->find(data);
    tensors_.push_back({range, range->serial, data, 0, streams_[0]});
    range->seen.store(true);
    run(streams_[0], {tensors_.size() - 1}, {true});
    return tensors_.size() - 1;
  }
  // It leaves as a plan has it.
  void leave(std::size_t index) {
    const PlannedMove out{tensors_[index].range, tensors_[index].serial, 0, tensors_[index].range->chunks};
    engine_->move_by_plan({&out, 1}, {});
  }

  void free(std::size_t index) { drop(index, draw(2) == 0); }
  void drop(std::size_t index, bool keep = false) {
    engine_->free(tensors_[index].data, keep);
    tensors_.erase(tensors_.begin() + static_cast<std::ptrdiff_t>(index));
  }

  void plan(std::size_t leaves, std::size_t arrivals) {
    const auto moves = [&](std::size_t count) {
      std::vector<PlannedMove> made;
      for (std::size_t i = 0; i < count && !tensors_.empty(); ++i) {
        const Tensor& t = tensors_[draw(tensors_.size())];
        made.push_back({t.range, t.serial, 0, t.range->chunks});
      }
      return made;
    };
    engine_->move_by_plan(moves(leaves), moves(arrivals));
  }

  // One random step of a training program.
  void step(std::size_t most_tensors) {
    const std::size_t what = draw(100);
    if (tensors_.size() < 2 || (what < 15 && tensors_.size() < most_tensors)) {
      fresh(1 + draw(3), any_stream());
    } else if (what < 25) {
      free(draw(tensors_.size()));
    } else if (what < 32) {
      plan(1 + draw(2), draw(3));
    } else if (what == 32 && draw(4) == 0) {
      engine_->evict_all();
    } else if (what == 34) {
      synchronized(1 + draw(3), any_stream(), any_stream());
    } else if (what == 33) {
      engine_->resize(budget_ <= 8 ? budget_ : std::max<std::size_t>(8, budget_ - draw(4)));
    } else {
      std::vector<std::size_t> arguments{draw(tensors_.size())};
      const std::size_t other = draw(tensors_.size());
      if (other != arguments[0]) arguments.push_back(other);
      run(any_stream(), arguments, {draw(3) == 0, draw(5) == 0});
    }
  }

  void finish() {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      run(tensors_[i].last != Lane::none ? tensors_[i].last : streams_[0], {i}, {false});
    }
    while (!tensors_.empty()) free(tensors_.size() - 1);
    CHECK(engine_->inspect().validate().empty());
    engine_->detach();
    CHECK(engine_->drained());  // and the device with it
    for (const std::string& complaint : work_.complaints()) std::fprintf(stderr, "%s\n", complaint.c_str());
    CHECK(work_.complaints().empty());
  }

  std::size_t wrong() const { return *wrong_; }

 private:
  void launch(Lane stream, Tensor& tensor, bool write) {
    // The program's own duty, as with torch's streams.
    if (tensor.last != stream && tensor.last != Lane::none) work_.order(lane(stream), work_.end_of(lane(tensor.last)));
    tensor.last = stream;
    ask(stream, tensor, write);
  }
  void ask(Lane stream, Tensor& tensor, bool write) {
    const std::uint64_t expected = tensor.value;
    if (write) tensor.value = ++values_;
    LateWork::Uses uses;
    for (Address at = tensor.range->base; uses.size() < tensor.range->chunks; at += kChunk) {
      uses.emplace_back(at, work_.mapped(at));
    }
    const auto kernel = [uses, expected, write, value = tensor.value, wrong = wrong_] {
      for (const auto& [at, chunk] : uses) {
        auto* words = reinterpret_cast<std::uint64_t*>(at);
        if (expected != 0 && (words[0] != expected || words[200] != expected)) ++*wrong;
        if (write) words[0] = words[200] = value;
      }
    };
    work_.push(lane(stream), {kernel, uses});
  }

  std::mt19937 random_;
  std::size_t budget_;
  static LateWork::Lane lane(Lane stream) { return static_cast<LateWork::Lane>(stream); }

  Device device_;
  LateWork& work_ = device_.work;
  std::unique_ptr<Engine> engine_;
  std::vector<Lane> streams_;
  std::vector<Tensor> tensors_;
  bool sits_ = false;
  std::map<std::pair<std::size_t, std::size_t>, Range*> before_;  // by kind and chunks
  std::uint64_t values_ = 0;
  std::shared_ptr<std::size_t> wrong_ = std::make_shared<std::size_t>(0);
};

}  // namespace

TEST(of_streams_that_others_end_nothing_is_asked_any_more) {
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    Program program(seed, 8 + seed % 5, 1 + seed % 2);
    for (int i = 0; i < 8; ++i) {
      const Lane foreign = program.foreign_stream();
      for (int k = 0; k < 30; ++k) program.step(12);
      program.fresh(1, foreign);
      program.run(foreign, {program.draw(program.tensors())}, {true});
      program.engine().streams()->used(foreign);  // an operation made of others ends: those were all it asked for
      program.engine().streams()->pulse(foreign);
      program.end_stream(foreign);
      program.engine().evict_all();
      if (program.tensors() > 0) program.engine().streams()->makes_again(program.stream(0));
      program.engine().streams()->before_capture();
    }
    program.finish();
    CHECK(program.wrong() == 0);
  }
}

TEST(what_a_stream_of_others_came_after_counts_for_nothing) {
  Program program(1, 8, 1);
  const Lane foreign = program.foreign_stream();
  for (std::size_t i = 0; i < 12; ++i) program.fresh(1, program.stream(0));
  for (const bool trusted : {false, true}) {
    const Lane stream = trusted ? program.stream(0) : foreign;
    program.run(program.stream(0), {0}, {false});  // brings it
    Range& range = *program.tensor(0).range;
    const std::size_t before = program.work().orders;
    for (int i = 0; i < 3; ++i) program.engine().streams()->ready_on(stream, range);
    CHECK((program.work().orders - before >= 3) == !trusted);
    program.engine().evict_all();
  }
  program.finish();
}

TEST(random_programs_read_what_they_wrote) {
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    Program program(seed, 8 + seed % 7, 1 + seed % 3, false, seed % 4 == 3);
    for (int i = 0; i < 400; ++i) {
      program.step(12);
      if (i % 50 == 0) CHECK(program.engine().inspect().validate().empty());
    }
    program.engine().resize(8 + seed % 7);  // as it is: what has ended counts
    const Snapshot shot = program.engine().inspect().snapshot();
    CHECK(shot.counters.evictions > 20 && shot.copies_in > 0);
    CHECK(shot.overdrawn_chunks == 0 && shot.counters.oversize == 0);
    CHECK(shot.peak_held_chunks <= 8 + seed % 7);
#ifdef VT_STANDIN
    CHECK(standin().copies < shot.counters.evictions + shot.copies_in);  // some were one
#endif
    program.finish();
    CHECK(program.wrong() == 0);
  }
}

TEST(what_is_read_to_make_something_again_was_written_and_stays) {
  for (std::uint32_t seed = 0; seed < 40; ++seed) {
    Program program(seed, 8, 2);
    const std::size_t tensor = program.fresh(2, program.stream(0));
    for (int i = 0; i < 6; ++i) {
      program.run(program.stream(0), {tensor}, {true});
      program.read_again(program.stream(1), tensor);
    }
    program.finish();
    CHECK(program.wrong() == 0);
  }
}

TEST(what_a_stream_was_recorded_for_is_given_to_nobody_before_it) {
  for (const bool freed : {true, false}) {
    for (std::uint32_t seed = 0; seed < 20; ++seed) {
      Program program(seed, 6, 2);
      for (int i = 0; i < 6; ++i) {
        const std::size_t tensor = program.fresh(2, program.stream(0));
        program.read_unseen(program.stream(1), tensor);
        if (freed) {
          program.drop(tensor);
        } else {
          program.engine().evict_all();
        }
        for (int k = 0; k < 3; ++k) program.fresh(2, program.stream(0));  // on its chunks
        while (program.tensors() > 0) program.drop(program.tensors() - 1);
      }
      program.finish();
      CHECK(program.wrong() == 0);
    }
  }
}

TEST(no_thread_stands_in_the_steady_state) {
  Program program(7, 9, 1);
  const Lane stream = program.any_stream();
  for (int i = 0; i < 8; ++i) program.fresh(2, stream);
  const auto iteration = [&] {
    for (std::size_t i = 0; i < 8; ++i) {
      program.run(stream, {i}, {i % 3 == 0});
      if (i % 2 == 1) program.work().drain();  // the device is two operations behind, and every gap longer than that
    }
  };
  for (int i = 0; i < 20; ++i) iteration();
  const Snapshot before = program.engine().inspect().snapshot();
  for (int i = 0; i < 20; ++i) iteration();
  const Snapshot after = program.engine().inspect().snapshot();
  CHECK(after.counters.evictions - before.counters.evictions > 100);
  CHECK(after.host_waits == before.host_waits);
  program.finish();
  CHECK(program.wrong() == 0);
}

TEST(computing_does_not_wait_for_what_leaves_while_other_chunks_are_free) {
  Program program(29, 6, 1);
  const Lane stream = program.any_stream();
  for (int i = 0; i < 3; ++i) program.fresh(2, stream);
  const auto waits_for_a_copy_out = [&] {  // the first lane
    return program.work().pending([](const auto& item) {
      return std::any_of(item.after.begin(), item.after.end(), [](const auto& point) { return point.first == 0; });
    });
  };
  program.drop(1);
  const Tensor& leaves = program.tensor(0);
  const PlannedMove move{leaves.range, leaves.serial, 0, 2};
  program.engine().move_by_plan({&move, 1}, {});
  for (int i = 0; i < 2; ++i) program.fresh(1, stream);  // of another size: its addresses lead nowhere yet
  CHECK(!waits_for_a_copy_out());
  program.fresh(1, stream);
  CHECK(waits_for_a_copy_out());  // there was no other
  program.finish();
  CHECK(program.wrong() == 0);
}

TEST(more_than_the_budget_at_once_is_overdrawn_and_made_good) {
  Program program(3, 4, 1);
  const Lane stream = program.any_stream();
  for (int i = 0; i < 3; ++i) program.fresh(3, stream);
  program.run(stream, {0, 1, 2}, {true, false, true});
  CHECK(program.engine().inspect().snapshot().counters.oversize == 1);  // one operation, whatever it lacks
  CHECK(program.engine().inspect().snapshot().overdrawn_chunks == 5);
  for (int i = 0; i < 50; ++i) program.drop(program.fresh(1, stream));  // they leave, though nobody frees them
  CHECK(program.engine().inspect().snapshot().overdrawn_chunks == 0);
  CHECK(program.engine().inspect().snapshot().held_chunks <= 4);
  program.run(stream, {0, 1, 2}, {true, false, true});
  program.engine().resize(6);  // what is beyond the budget becomes part of it
  CHECK(program.engine().inspect().snapshot().overdrawn_chunks == 3);
  program.engine().resize(12);
  CHECK(program.engine().inspect().snapshot().overdrawn_chunks == 0);
  program.engine().resize(4);
  program.run(stream, {2}, {true});
  CHECK(program.engine().inspect().snapshot().held_chunks <= 4);
  program.finish();
  CHECK(program.wrong() == 0);
}

TEST(more_than_the_budget_at_once_is_used_in_the_hosts_memory) {
  Program program(3, 4, 1, true);
  const Lane stream = program.any_stream();
  for (int i = 0; i < 3; ++i) program.fresh(3, stream);
  program.run(stream, {0, 1, 2}, {true, false, true});
  const Snapshot shot = program.engine().inspect().snapshot();
  CHECK(shot.counters.oversize == 1 && shot.handles.host_mappings == 5);
  CHECK(shot.counters.borrowed_bytes.current > 4 * kChunk && shot.pinned == 5 * kChunk);
  program.run(stream, {0, 1, 2}, {false, true, true});  // what is there is used there
  CHECK(program.engine().inspect().snapshot().handles.host_mappings == 5);
  for (std::size_t i = 0; i < 50; ++i) program.run(stream, {i % 3}, {i % 2 == 0});
  const Snapshot later = program.engine().inspect().snapshot();
  CHECK(later.handles.host_mappings == 0 && later.counters.borrowed_bytes.current == 0);
  CHECK(later.handles.places == 5 && later.pinned == 5 * kChunk);  // for the next time
  CHECK(later.peak_overdrawn_chunks == 0 && later.peak_held_chunks <= 4);
  program.finish();
  CHECK(program.wrong() == 0);
}

TEST(a_tensor_may_be_born_in_the_hosts_memory_and_die_there) {
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    Program program(seed, 4, 2, true);
    const Lane stream = program.any_stream();
    Range& pinned = *program.tensor(program.fresh(3, stream)).range;
    CHECK(program.engine().try_pin(pinned, false));  // by an operation whose work is not yet asked for
    program.fresh(3, stream);
    CHECK(program.engine().inspect().snapshot().handles.host_mappings == 2);
    program.run(program.any_stream(), {1}, {true});
    program.drop(1);  // in flight
    CHECK(program.engine().inspect().validate().empty());
    program.engine().unpin(whole(pinned, false));
    for (int i = 0; i < 20; ++i) program.drop(program.fresh(2, stream));
    CHECK(program.engine().inspect().validate().empty());
    program.finish();
    CHECK(program.wrong() == 0);
  }
}

TEST(memory_of_the_host_stays_where_it_is_for_an_operation_that_is_being_asked_for) {
  Program program(41, 4, 1, true);
  const Lane stream = program.any_stream();
  for (int i = 0; i < 3; ++i) program.fresh(3, stream);
  program.run(stream, {0, 1, 2}, {true, false, true});
  const auto in_place = [&](std::size_t i) { return program.engine().inspect().residency(program.tensor(i).data).in_state[4]; };
  const std::size_t last = in_place(0) == 3 ? 0 : 1;  // the one for which nothing was left
  const std::size_t before = in_place(last);
  Range& range = *program.tensor(last).range;
  range.pins.fetch_add(1);  // by an operation whose work is not yet asked for
  program.run(stream, {last}, {true});  // another thread's
  CHECK(before > 0 && in_place(last) == before);
  range.pins.fetch_sub(1);
  program.run(stream, {last}, {true});
  CHECK(in_place(last) == 0);
  program.finish();
  CHECK(program.wrong() == 0);
}

TEST(a_slot_that_is_still_read_may_belong_to_a_tensor_that_lies_in_place) {
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    Program program(seed, 3, 2, true);
    const Lane stream = program.stream(0), other = program.stream(1);
    for (int i = 0; i < 3; ++i) program.fresh(1, stream);
    program.work().drain();
    const auto leave = [&](std::size_t i) {
      const PlannedMove move{program.tensor(i).range, program.tensor(i).serial, 0, 1};
      program.engine().move_by_plan({&move, 1}, {});
    };
    leave(0);
    program.work().drain();
    program.run(stream, {0}, {true});  // its slot is free now, and read
    for (std::size_t i = 0; i < 3; ++i) program.tensor(i).range->pins.fetch_add(1);
    void* born = program.engine().allocate(kChunk, "test", other);
    CHECK(program.engine().inspect().residency(born).in_state[4] == 1);
    program.engine().free(born, false);
    for (std::size_t i = 0; i < 3; ++i) program.tensor(i).range->pins.fetch_sub(1);
    leave(1);  // into that slot
    program.finish();
    CHECK(program.wrong() == 0);
  }
}

TEST(managing_ends_with_a_dead_tensor_in_place_that_an_operation_still_pins) {
  Program program(3, 4, 1, true);
  const Lane stream = program.any_stream();
  for (int i = 0; i < 3; ++i) program.fresh(3, stream);
  program.run(stream, {0, 1, 2}, {true, false, true});
  CHECK(program.engine().inspect().snapshot().handles.host_mappings == 5);
  std::vector<Range*> pinned;
  for (std::size_t i = 0; i < 3; ++i) pinned.push_back(program.tensor(i).range);
  for (Range* range : pinned) range->pins.fetch_add(1);
  while (program.tensors() > 0) program.drop(program.tensors() - 1);
  program.engine().detach();
  CHECK(program.engine().drained());
}

TEST(what_is_used_in_place_comes_back_when_managing_stops) {
  Program program(3, 4, 1, true);
  const Lane stream = program.any_stream();
  for (int i = 0; i < 3; ++i) program.fresh(3, stream);
  program.run(stream, {0, 1, 2}, {true, false, true});
  program.engine().detach();
  const Snapshot shot = program.engine().inspect().snapshot();
  CHECK(shot.handles.host_mappings == 0 && shot.handles.places == 0 && shot.slots_used == 0);
  program.finish();
  CHECK(program.wrong() == 0);
}

// Operations on up to six tensors of up to three chunks, a budget of four: now in the host's memory, now beyond the budget.
TEST(random_operations_larger_than_the_budget) {
  for (std::uint32_t seed = 0; seed < 40; ++seed) {
    const bool places = seed % 2 == 0;
    Program program(seed, 4, 1 + seed % 3, places, seed % 4 > 1);
    for (int i = 0; i < 200; ++i) {
      program.step(8);
      if (i % 4 != 0) continue;
      std::vector<std::size_t> all(std::min<std::size_t>(program.tensors(), 2 + program.draw(5)));
      std::iota(all.begin(), all.end(), 0);
      program.run(program.any_stream(), all, {true, false, true, false, false, true});
      CHECK(program.engine().inspect().validate().empty());
    }
    const Snapshot shot = program.engine().inspect().snapshot();
    CHECK(shot.counters.oversize > 5 && shot.peak_held_chunks <= 4 + shot.peak_overdrawn_chunks);
    CHECK((shot.peak_overdrawn_chunks == 0) == places && (shot.counters.borrowed_bytes.peak > 0) == places);
    program.finish();
    CHECK(program.wrong() == 0);
  }
}

TEST(an_address_that_was_given_away_in_the_hosts_memory_stays_there) {
  Program program(37, 4, 1, true);
  const Lane stream = program.any_stream();
  for (int i = 0; i < 3; ++i) program.fresh(3, stream);
  program.run(stream, {0, 1, 2}, {true, false, true});
  const char* data = program.tensor(2).data;
  program.engine().export_address(data);
  program.work().drain();
  const std::uint64_t value = program.tensor(2).value;
  for (std::size_t i = 0; i < 40; ++i) {
    program.run(stream, {i % 2}, {true});
    CHECK(*reinterpret_cast<const std::uint64_t*>(data) == value);
  }
  program.finish();
  CHECK(program.wrong() == 0);
}

TEST(an_address_that_was_given_away_stays_where_it_is) {
  Program program(5, 8, 1);
  const Lane stream = program.any_stream();
  const char* data = program.tensor(program.fresh(2, stream)).data;
  for (int i = 0; i < 3; ++i) program.fresh(2, stream);
  program.engine().evict_all();
  program.engine().export_address(data);
  const std::uint64_t value = *reinterpret_cast<const std::uint64_t*>(data);
  CHECK(value == program.tensor(0).value);
  for (int i = 0; i < 40; ++i) {
    program.run(stream, {1 + program.draw(3)}, {true});
    CHECK(*reinterpret_cast<const std::uint64_t*>(data) == value);
  }
  CHECK(program.engine().inspect().residency(data).in_state[0] == 2);
  program.finish();
  CHECK(program.wrong() == 0);
}

TEST(addresses_that_are_in_use_lead_where_they_led) {
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    Program program(seed, 3, 1);
    program.engine().seats()->begin(64, {{0, 1, 2}, 3});
    for (int i = 0; i < 3; ++i) program.sit(1, {kNone});  // all chunks there are
    while (program.tensors() > 0) program.drop(0);
    program.work().drain();
    program.sit(1, {2});
    program.sit(2, {0, 1});
    Range* range = program.tensor(1).range;
    program.drop(1);  // its kernel may not have run yet
    program.sit(1, {kNone});
    CHECK(program.tensor(1).range->parts[0].chunk == 1);
    program.leave(1);  // from a seat that is another's
    program.drop(0);
    program.sit(2, {0, 1}, range);
    CHECK(program.tensor(1).range != range || range->parts[1].chunk == 1);
    program.finish();
  }
}

TEST(addresses_that_are_in_use_lead_where_they_led_though_their_chunks_are_kept_for_others) {
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    Program program(seed, 4, 1);
    program.engine().seats()->begin(64, {{0, 1, 2, 3}, 3});  // chunk 3 is nobody's seat
    const Lane stream = program.any_stream();
    program.fresh(4, stream);  // all chunks there are
    program.drop(0);
    program.work().drain();
    program.fresh(1, stream);
    program.fresh(2, stream);  // there was nothing but seats
    CHECK(program.tensor(0).range->parts[0].chunk == 3);
    program.drop(1);  // its kernel may not have run yet
    program.drop(0);  // now there is something else
    program.fresh(2, stream);
    program.finish();
    CHECK(program.wrong() == 0);
  }
}

TEST(every_row_of_a_timed_iteration_has_its_time) {
  Program program(13, 6, 2);
  for (int i = 0; i < 30; ++i) program.step(10);
  for (int round = 0; round < 3; ++round) {
    program.engine().streams()->start_timing(false);
    for (int i = 0; i < 50; ++i) {
      program.engine().streams()->row_begins(program.any_stream());
      program.step(10);
    }
    const auto times = program.engine().streams()->row_times();
    CHECK(times.size() == 51 && times.front() == 0 && std::is_sorted(times.begin(), times.end()));
  }
  program.engine().streams()->start_timing(false);
  program.engine().streams()->row_begins(Lane::none);  // a graph is captured
  program.engine().streams()->row_begins(program.any_stream());
  CHECK(program.engine().streams()->row_times().empty());
  program.engine().streams()->start_timing(false);
  program.engine().streams()->row_begins(program.any_stream());
  CHECK(program.engine().streams()->row_times().size() == 2);
  program.finish();
}

TEST(a_tensor_may_be_freed_in_flight_when_managing_has_stopped) {
  Program program(31, 6, 1);
  const Lane stream = program.any_stream();
  for (int i = 0; i < 2; ++i) program.fresh(2, stream);
  program.engine().detach();
  program.run(stream, {0, 1}, {true, true});
  program.drop(0);
  program.finish();
  CHECK(program.wrong() == 0);
}

// A device that is full: what was seen before can be dropped afterwards, too.
TEST(where_managing_cannot_stop_all_goes_on) {
  struct Nobody final : Remaker {
    void run(const Recipes::Run&, const Take&, bool) override { CHECK(!"nothing is recomputed here"); }
  };
  Program program(17, 6, 1);
  Engine& engine = program.engine();
  engine.remake().use(std::make_unique<Nobody>());
  const Lane stream = program.any_stream();
  for (int i = 0; i < 60; ++i) program.fresh(2, stream);
  const std::size_t last = program.tensors() - 1;
  Range& range = *program.tensor(last).range;
  const auto step = engine.remake().begin(std::make_unique<Operation>(), {});
  Range* const results[] = {&range};
  engine.remake().end(step, results);
  bool refused = false;
  try {
    engine.detach();
  } catch (const OutOfMemory&) {
    refused = true;
  }
  CHECK(refused);
  const PlannedMove all{&range, range.serial, 0, range.chunks};
  engine.remake().drop({&all, 1});
  CHECK(engine.inspect().residency(program.tensor(last).data).in_state[static_cast<std::size_t>(State::dropped)] == 2);
  program.drop(last);
  while (program.tensors() > 6) program.drop(program.tensors() - 1);
  program.finish();
  CHECK(program.wrong() == 0);
}

TEST(what_is_absent_comes_back_when_managing_stops) {
  Program program(11, 6, 1);
  const Lane stream = program.any_stream();
  for (int i = 0; i < 6; ++i) program.fresh(2, stream);
  CHECK(program.engine().inspect().residency(program.tensor(0).data).in_state[2] == 2);
  program.engine().detach();
  CHECK(!program.engine().drained());
  for (std::size_t i = 0; i < 6; ++i) {
    CHECK(*reinterpret_cast<const std::uint64_t*>(program.tensor(i).data) == program.tensor(i).value);
  }
  program.finish();
}

#ifdef VT_STANDIN

TEST(the_device_is_left_as_it_was_found) {
  Program program(17, 4, 2, true);
  for (int i = 0; i < 100; ++i) program.step(10);
  program.run(program.any_stream(), {0, 1, 2, 3}, {true, true, true, true});
  CHECK(standin().in_host > 0);
  program.finish();
  CHECK(standin().handles() == 0 && standin().mappings() == 0 && standin().events == 0 && standin().in_host == 0);
}

// What a stream has not waited for yet.
Ticket newest_copy(CudaDriver& driver) {
  Ticket ticket;
  CHECK(driver.mark(Lane::in, &ticket).ok());
  return ticket;
}

// A stopwatch of a device. Pre: the device begins.
struct Timed {
  using Times = std::vector<std::uint64_t>;

  Lane stream() { return order.adopt(reinterpret_cast<void*>(standin().work.add_lane() + 1)); }
  void come_after_a_copy(Lane stream) { order.after(stream, newest_copy(driver)); }
  // What it tells once all is done, if those were the moments it kept.
  Times read(std::deque<float> ms) {
    order.wait(order.everything());
    standin().elapsed = std::move(ms);
    return watch.read();
  }

  CudaDriver driver{kChunk, 0, VT_STANDIN};
  StreamOrder order{driver};
  Stopwatch& watch = order.stopwatch();
};

TEST(waits_for_copies_are_no_part_of_a_row) {
  standin().begin(1);
  Timed device;
  Stopwatch& watch = device.watch;
  const Lane one = device.stream(), other = device.stream();
  const auto timed = [&](std::deque<float> ms) {
    watch.start();
    watch.row(one);                 // at 0 ms
    device.come_after_a_copy(one);  // from the 2nd to the 3rd
    watch.row(one);
    device.order.after(other, device.order.now(one));  // no copy: not taken out
    watch.row(other);
    watch.stop();
    return device.read(std::move(ms));
  };
  CHECK((timed({0, 1, 4, 6, 7, 10}) == Timed::Times{0, 3'000'000, 4'000'000, 7'000'000}));
  CHECK((timed({0, 1, 4, 6, 5, 10}) == Timed::Times{0, 3'000'000, 3'000'000, 7'000'000}));  // the other stream is ahead
  watch.start();
  watch.row(one);  // nobody reads it
  CHECK((timed({0, 0, 0, 1, 1, 1}) == Timed::Times{0, 1'000'000, 1'000'000, 1'000'000}));
  watch.start();
  standin().fail_at = standin().calls + 2;  // the context, the event
  for (int i = 0; i < 4; ++i) watch.row(one);
  watch.stop();
  standin().fail_at = 0;
  CHECK(device.read({}).empty());
}

TEST(what_the_engine_does_itself_is_no_part_of_a_row) {
  standin().begin(1);
  Timed device;
  Stopwatch& watch = device.watch;
  const Lane stream = device.stream();
  watch.call_begins();
  watch.start();
  watch.call_ends();    // it began before
  watch.call_begins();  // nothing is timed yet
  watch.call_ends();
  watch.row(stream);    // at 0 ms
  watch.call_begins();  // from the 1st to the 6th
  watch.call_begins();
  watch.making_begins();
  device.come_after_a_copy(stream);  // within
  watch.making_ends();
  watch.call_ends();
  watch.call_ends();
  watch.row(stream);  // at 8 ms
  watch.stop();       // at 9 ms
  CHECK((device.read({0, 1, 6, 8, 9}) == Timed::Times{0, 3'000'000, 4'000'000}));
}

TEST(where_the_host_is_ahead_only_what_is_made_again_is_no_part_of_a_row) {
  standin().begin(1);
  Timed device;
  Stopwatch& watch = device.watch;
  const Lane stream = device.stream();
  watch.start(true);
  watch.row(stream);  // at 0 ms
  watch.call_begins();
  device.come_after_a_copy(stream);  // from the 1st to the 2nd
  watch.call_ends();
  watch.row(stream);  // at 5 ms
  watch.call_begins();
  watch.making_begins();  // from the 6th to the 9th
  watch.making_ends();
  watch.call_ends();
  watch.stop();  // at 10 ms
  CHECK((device.read({0, 1, 2, 5, 6, 9, 10}) == Timed::Times{0, 4'000'000, 6'000'000}));
}

TEST(copies_that_follow_each_other_side_by_side_are_one) {
  standin().begin(3);
  CudaDriver driver(kChunk, 0, VT_STANDIN);
  constexpr std::size_t kCount = 6;
  std::vector<ChunkId> chunks(kCount);
  std::vector<char> there(kCount * kChunk), back(kCount * kChunk);
  Address at = 0;
  CHECK(driver.set_capacity(kCount).ok() && driver.reserve(kCount * kChunk, &at).ok());
  for (ChunkId& chunk : chunks) CHECK(driver.create(&chunk).ok());
  CHECK(driver.map_run(at, chunks).ok());
  std::iota(there.begin(), there.end(), 0);
  std::vector<Ticket> in(kCount), out(kCount);
  const auto bring = [&](std::size_t i) {
    const HostPlace place{there.data() + i * kChunk, -1, 0, 0, 0, 1};
    CHECK(driver.copy_at(Lane::in, at + i * kChunk, chunks[i], place, kChunk, &in[i]).ok());
  };
  for (std::size_t i = 0; i < 4; ++i) bring(i);
  CHECK(standin().copies == 0);
  CHECK(in[3].number == 4 && driver.live().copies == 4);
  driver.go();
  CHECK(standin().copies == 1);
  bring(5);  // not beside the last
  bring(4);  // nor behind the one before
  CHECK(standin().copies == 2);
  driver.wait(in[4]);
  CHECK(standin().copies == 3);
  for (const Ticket& ticket : in) CHECK(driver.poll(ticket, nullptr) == CopyState::done);
  const auto send = [&](std::size_t i, std::size_t to, std::uint32_t piece = 1) {
    const HostPlace place{back.data() + to * kChunk, -1, 0, 0, 0, piece};
    CHECK(driver.copy_at(Lane::out, at + i * kChunk, chunks[i], place, kChunk, &out[i]).ok());
  };
  send(0, 0);
  send(1, 1);
  CHECK(driver.order(Lane::in, out[0]).ok());  // what is waited for begins
  CHECK(standin().copies == 4);
  send(2, 3);
  send(3, 2);  // side by side here, but not there
  send(4, 4, 2);
  send(5, 5, 3);  // side by side, but in memory that was pinned by another call
  Ticket all;
  CHECK(driver.mark(Lane::out, &all).ok() && all.number == 7);
  CHECK(standin().copies == 8);
  driver.wait(all);
  std::swap_ranges(back.begin() + 2 * kChunk, back.begin() + 3 * kChunk, back.begin() + 3 * kChunk);
  CHECK(back == there);
  CHECK(!driver.copy_at(Lane::out, at, chunks[1], {back.data()}, kChunk, &all).ok());  // it leads elsewhere
  CHECK(driver.unmap_run(at, kCount).ok() && driver.release(at).ok());
  for (const ChunkId chunk : chunks) CHECK(driver.destroy(chunk).ok());
  CHECK(standin().work.complaints().empty());
}

TEST(few_copies_are_timed_and_the_others_are_taken_to_go_as_fast) {
  standin().begin(3);
  CudaDriver driver(kChunk, 0, VT_STANDIN);
  std::vector<char> there(kChunk);
  ChunkId chunk = kNone;
  Address at = 0;
  CHECK(driver.set_capacity(1).ok() && driver.reserve(kChunk, &at).ok() && driver.create(&chunk).ok());
  CHECK(driver.map_run(at, {&chunk, 1}).ok());
  const std::size_t records = standin().records;
  standin().elapsed = {2, 4, 6};  // ms
  Ticket ticket;
  for (int i = 0; i < 16; ++i) {
    CHECK(driver.copy_at(Lane::in, at, chunk, {there.data()}, kChunk, &ticket).ok());
    driver.wait(ticket);
  }
  CHECK(standin().records == records + 16 + 3);
  CHECK(std::llround(static_cast<double>(driver.times(Lane::in).busy_ns) / 1e6) == 7 * 2 + 7 * 3 + 2 * 4);
  CHECK(driver.unmap_run(at, 1).ok() && driver.release(at).ok() && driver.destroy(chunk).ok());
  CHECK(standin().work.complaints().empty());
}

TEST(one_ticket_ends_what_leaves_without_a_copy) {
  standin().begin(1);
  CudaDriver driver(kChunk, 0, VT_STANDIN);
  StreamOrder order(driver);
  const Lane stream = order.adopt(reinterpret_cast<void*>(standin().work.add_lane() + 1));
  const Ticket first = order.end_of(Lane::out);
  CHECK(order.end_of(Lane::out).number == first.number);
  order.after(Lane::out, order.now(stream));
  const Ticket second = order.end_of(Lane::out);
  CHECK(second.number == first.number + 1);  // that lies behind what it came after
  order.after(Lane::out, Ticket{stream, 1});  // as it did already
  CHECK(order.end_of(Lane::out).number == second.number);
  Ticket third;
  CHECK(driver.mark(Lane::out, &third).ok());
  order.copied(third);
  CHECK(order.end_of(Lane::out).number == third.number);
  order.wait(order.everything());
  CHECK(standin().work.complaints().empty());
}

TEST(where_a_graph_is_captured_no_event_is_recorded) {
  standin().begin(1);
  CudaDriver driver(kChunk, 0, VT_STANDIN);
  StreamOrder order(driver);
  void* native = reinterpret_cast<void*>(standin().work.add_lane() + 1);
  const Lane stream = order.adopt(native);
  order.mark_streams();
  standin().capturing = native;
  order.after(Lane::out, order.now(stream));
  order.wait(order.everything());
  standin().capturing = nullptr;
  order.wait(order.everything());
  CHECK(standin().work.complaints().empty());
}

TEST(calls_come_from_threads_without_a_context) {
  Program program(19, 6, 1);
  const Lane stream = program.any_stream();
  std::thread([&] {
    for (int i = 0; i < 8; ++i) program.fresh(2, stream);
  }).join();
  program.finish();
  CHECK(program.wrong() == 0);
}

TEST(chunks_may_be_donated) {
  standin().begin(1);
  CudaDriver owner(kChunk, 0, VT_STANDIN);
  ChunkId theirs = kNone, made = kNone;
  Address base = 0;
  CHECK(owner.set_capacity(1).ok() && owner.create(&theirs).ok() && owner.reserve(kChunk, &base).ok());
  CHECK(owner.map(base, theirs, Access::write).ok());
  {
    CudaDriver driver(kChunk, 0, VT_STANDIN);
    Address at = 0;
    CHECK(driver.set_capacity(2).ok() && driver.reserve(kChunk, &at).ok() && driver.donate(base).ok());
    CHECK(driver.create(&made).ok() && driver.take_back() == 0);
    CHECK(driver.map(at, made, Access::write).ok());
    std::memset(reinterpret_cast<void*>(base), 9, kChunk);
    CHECK(*reinterpret_cast<char*>(at + 77) == 9);  // the same memory
    CHECK(driver.destroy(made).code == Code::illegal && driver.unmap(at).ok() && driver.destroy(made).ok());
    CHECK(driver.take_back() == base && driver.release(at).ok());
  }
  CHECK(owner.unmap(base).ok() && owner.destroy(theirs).ok() && owner.release(base).ok());
  CHECK(standin().handles() == 0);
}

TEST(the_host_store_is_pinned_as_far_as_the_driver_allows) {
  standin().begin(1);
  standin().most_pinned = Bytes{600} << 20;
  {
    const Bytes slot = Bytes{64} << 20;
    const auto store = make_ram_store(slot, 16 * slot, cuda_pinning(0, VT_STANDIN));
    CHECK(store->pinned() == 0);
    SlotId taken = kNone;
    for (int i = 0; i < 16; ++i) CHECK(store->acquire(&taken).ok());
    CHECK(store->pinned() == Bytes{512} << 20 && standin().pinned == store->pinned());  // in pieces of 256 MiB
    for (SlotId slot = 0; slot < 15; ++slot) store->release(slot == 1 ? 15 : slot);
    store->trim();  // a slot is in use in the first piece of the two
    CHECK(store->pinned() == Bytes{256} << 20 && standin().pinned == store->pinned());
    CHECK(store->acquire(&taken).ok() && store->used() == 2);
  }
  CHECK(standin().pinned == 0);
  standin().most_pinned = Bytes{1} << 30;
}

TEST(what_cannot_work_is_refused_in_words) {
  standin().begin(1);
  const auto refused = [](auto make, const char* word) {
    try {
      make();
    } catch (const InvalidUse& error) {
      return std::string(error.what()).find(word) != std::string::npos;
    }
    return false;
  };
  CHECK(refused([] { CudaDriver(1000, 0, VT_STANDIN); }, "power of two"));
  CHECK(refused([] { CudaDriver(kChunk, 3, VT_STANDIN); }, "no CUDA device 3"));
  CHECK(refused([] { CudaDriver(kChunk, 0, "/nowhere/libcuda.so.1"); }, "no NVIDIA driver"));
  standin().virtual_memory = 0;
  CHECK(refused([] { CudaDriver(kChunk, 0, VT_STANDIN); }, "virtual memory management"));
  standin().virtual_memory = 1;
}

// Whichever call of CUDA fails: an allocation is served or refused whole, the engine stays right, and nothing is lost.
TEST(every_call_fails_once) {
  std::size_t refused = 0;
  std::uint64_t last = 2;  // round in which the call was reached
  for (std::uint64_t round = 2; round < last + 4; ++round) {
    const std::uint64_t nth = round / 2;
    standin().begin(static_cast<std::uint32_t>(nth));
    standin().limit = 64 * kChunk;
    standin().host_node = round % 2 == 0 ? 0 : -1;  // an operation larger than the budget goes there, or beyond the budget
    EngineConfig config;
    config.budget_chunks = 6;
    Engine engine(std::make_unique<CudaDriver>(kChunk, 0, VT_STANDIN), make_ram_store(kChunk, 64 * kChunk), config);
    const Lane stream = engine.streams()->lane(Device().stream());
    std::vector<void*> held;
    standin().fail_at = standin().calls + nth;
    for (Bytes chunks : {1, 3, 2, 3, 1, 2, 3}) {
      try {
        held.push_back(engine.allocate(chunks * kChunk, "test", stream));
      } catch (const OutOfMemory&) {
        ++refused;
      }
      CHECK(engine.inspect().validate().empty());
      if (held.empty()) continue;
      Range& newest = *engine.find(held.back());
      Range& oldest = *engine.find(held.front());
      engine.streams()->ready_on(stream, newest);
      const PlannedMove out{&newest, newest.serial, 0, newest.chunks}, in{&oldest, oldest.serial, 0, oldest.chunks};
      engine.move_by_plan({&out, 1}, {&in, 1});
      CHECK(engine.inspect().validate().empty());
      if (chunks == 2) {
        engine.free(held.back(), false);
        held.pop_back();
      }
    }
    std::vector<Use> all;
    for (void* address : held) all.push_back(whole(*engine.find(address), true));
    for (Use& use : all) use.whole = false;
    engine.pin_and_fetch(all, "test");
    for (const Use& use : all) engine.streams()->ready_on(stream, *use.range);
    CHECK(engine.inspect().validate().empty());
    for (const Use& use : all) engine.unpin(use);
    if (standin().calls >= standin().fail_at) last = round;
    standin().fail_at = 0;
    for (void* address : held) engine.free(address);
    engine.detach();
    CHECK(engine.drained() && standin().handles() == 0 && standin().mappings() == 0 && standin().in_host == 0);
  }
  CHECK(refused > 5 && last > 200);
}

// A kernel failed: every call does from then on. The program goes on to the error that torch raises next, and ends as it likes.
// The last test, as what is lost is not given back.
TEST(what_a_lost_device_answers_ends_nothing) {
  for (std::uint32_t seed = 0; seed < 8; ++seed) {
    standin().begin(seed);
    EngineConfig config;
    config.budget_chunks = 6;
    config.strict = seed % 4 == 3;
    Engine engine(std::make_unique<CudaDriver>(kChunk, 0, VT_STANDIN), make_ram_store(kChunk, 64 * kChunk), config);
    const Lane streams[2] = {engine.streams()->lane(Device().stream()), engine.streams()->lane(Device().stream())};
    std::vector<void*> held;
    std::size_t served = 0;
    for (std::size_t i = 0; i < 40; ++i) {
      standin().lost = i >= 20;
      const Lane stream = streams[i / 2 % 2];
      try {
        held.push_back(engine.allocate((1 + i % 3) * kChunk, "test", stream));
      } catch (const OutOfMemory&) {
      }
      Range& range = *engine.find(held[i * 7 % held.size()]);
      if (engine.try_pin(range, true)) {
        engine.streams()->ready_on(stream, range);
        engine.streams()->pulse(stream);
        engine.streams()->used_on(stream, range);
        engine.unpin(whole(range, true));
        served += i >= 20;
      }
      if (i % 9 == 8) engine.evict_all();
      if (held.size() > 5) {
        engine.free(held.front(), false);
        held.erase(held.begin());
      }
    }
    CHECK(served > 0);
    for (void* address : held) engine.free(address);
    engine.detach();
    CHECK(engine.drained());
    standin().lost = false;
  }
}
#endif

int main() { return run_native_tests(); }
