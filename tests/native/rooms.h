// The rooms behind the engine's front, put together for tests: each can be asked by itself.
#pragma once

#include <mutex>

#include "check.h"
#include "device/driver_host.h"
#include "engine/allocation.h"
#include "engine/arrivals.h"
#include "engine/inspector.h"
#include "engine/kind.h"
#include "engine/lending.h"
#include "engine/remake.h"
#include "engine/seats.h"
#include "engine/uses.h"
#include "testing/driver_late.h"

namespace vt {

inline constexpr Bytes kPiece = 4096;

using MakeDevice = std::unique_ptr<Driver> (*)();

inline std::unique_ptr<Driver> immediate_device() { return std::make_unique<HostDriver>(kPiece, 0); }

inline std::unique_ptr<Driver> late_device(bool places) {
  static LateWork work;
  work.begin(7);
  return std::make_unique<LateDriver>(kPiece, 256, work, Compute::late, places);
}
inline std::unique_ptr<Driver> ordered_device() { return late_device(false); }
inline std::unique_ptr<Driver> ordered_device_with_places() { return late_device(true); }

struct Rooms {
  explicit Rooms(MakeDevice make, std::size_t budget = 4, std::size_t host_slots = 64, EngineConfig config = {})
      : driver(make()),
        store(make_ram_store(kPiece, host_slots * kPiece)),
        ground(*driver, with_budget(config, budget)),
        ranges(ground),
        pool(*driver, budget),
        copies(*driver),
        roster(ground),
        chunks(ground, pool),
        kind(choose_kind(ground, ranges, roster, pool, chunks, copies, *store)),
        mappings(*kind.mappings),
        slots(*kind.slots),
        moves(*kind.moves),
        pins(ground),
        freed(ground, ranges, roster, pool, chunks, mappings, slots, moves),
        remake(mutex, ground, moves, freed),
        eviction(ground, roster, copies, moves, remake),
        supply(ground, pool, mappings, slots, moves, freed, eviction, pins, demand),
        allocation(ground, ranges, roster, pool, chunks, mappings, slots, moves, freed, supply),
        uses(ground, ranges, pool, slots, moves, pins, remake, supply),
        arrivals(mutex, ground, copies, moves, eviction, supply, demand),
        lending(mutex, closed, ground, ranges, *store, slots, moves, pins, remake, uses),
        inspector(mutex, closed, ground, ranges, roster, pool, chunks, slots, copies, remake, nullptr),
        lock(mutex) {
    if (OrderedDriver* ordered = driver->ordered()) CHECK(ordered->adopt(nullptr, &stream).ok());
  }

  static EngineConfig with_budget(EngineConfig config, std::size_t budget) {
    config.budget_chunks = budget;
    return config;
  }

  // A live tensor of so many pieces, resident, with `value` in every byte; then a use of it, as the observer would tell.
  Range& tensor(std::uint32_t pieces, char value = 0) {
    Range* range = nullptr;
    CHECK(allocation.make(lock, pieces * kPiece, "test", stream, {}, &range).ok());
    range->seen.store(true);
    finish();
    fill(*range, value);
    return *range;
  }
  void fill(Range& range, char value) {
    std::fill_n(reinterpret_cast<char*>(range.base), range.bytes, value);
    ground.clock.store(ground.now() + 1);
    range.last_use.store(ground.now());
  }
  bool holds(const Range& range, char value) const {
    const char* data = reinterpret_cast<const char*>(range.base);
    return std::all_of(data, data + range.bytes, [&](char byte) { return byte == value; });
  }
  // A piece leaves, and has left when this returns.
  void send(Range& range, std::uint32_t index) {
    bool pinned = true;
    CHECK(eviction.leave(range, index, &pinned).ok() && !pinned);
    finish();
    CHECK(range.parts[index].state == State::absent);
  }
  // A piece leaves without a copy.
  void drop(Range& range, std::uint32_t index) {
    range.missing.fetch_add(range.parts[index].state == State::resident);
    CHECK(moves.drop(range, index).ok() && range.parts[index].state == State::dropped);
  }
  // It comes back, and is there when this returns.
  void fetch(Range& range, std::uint32_t index) {
    ChunkId chunk = kNone;
    CHECK(supply.take_free(range, index, &chunk).ok());
    CHECK(moves.arrive(range, index, chunk).ok());
    finish();
    CHECK(range.parts[index].state == State::resident);
  }
  // Its content is what lies there from now on.
  bool lend(Range& range, const std::vector<char>& memory) {
    lock.unlock();
    const bool done = lending.lend(reinterpret_cast<const void*>(range.base), memory.data(), memory.size());
    lock.lock();
    return done;
  }
  void take_back(const std::vector<char>& memory) {
    lock.unlock();
    lending.take_back(memory.data(), memory.size());
    lock.lock();
    check();
  }
  // All that was asked of the device is done, and the books agree.
  void finish() {
    moves.settle(lock);
    moves.quiesce(lock);
    check();
  }
  void check() {
    lock.unlock();
    const std::string broken = inspector.validate();
    lock.lock();
    if (!broken.empty()) std::fprintf(stderr, "%s\n", broken.c_str());
    CHECK(broken.empty());
  }
  // No tensor, chunk, slot or mapping is left.
  void close() {
    for (Range* range : ranges.living()) freed.bury(*range, false);
    ground.detached = true;
    arrivals.stop(lock);
    freed.give_up_all();
    finish();
    supply.quiesce(lock);
    slots.trim();
    pool.trim();
    const LiveHandles live = driver->live();
    CHECK(live.chunks == 0 && live.mappings == 0 && live.host_mappings == 0 && live.places == 0 &&
          store->held() + store->lent() == 0);
    CHECK(ranges.close().ok());
  }

  std::unique_ptr<Driver> driver;
  std::unique_ptr<HostStore> store;
  std::mutex mutex;
  std::atomic<bool> closed{false};
  Ground ground;
  RangeTable ranges;
  ChunkPool pool;
  CopyEngine copies;
  Roster roster;
  Chunks chunks;
  Kind kind;
  Mappings& mappings;
  Slots& slots;
  Moves& moves;
  Pins pins;
  Demand demand;
  Freed freed;
  Remake remake;
  Eviction eviction;
  Supply supply;
  Allocation allocation;
  Uses uses;
  Arrivals arrivals;
  Lending lending;
  Inspector inspector;
  Lock lock;
  Lane stream = Lane::none;
};

}  // namespace vt
