// What every room of the engine stands on: the device, the sizes, the clock, the counters, and the rule of the one lock.
//
// Covers: arithmetic between bytes, chunks and addresses; what is said once for all rooms (managing has ended, this is a forked
// child); calls that must not fail; letting go of the lock.
// Leaves: everything that has a state of its own to the rooms.
//
// The lock: Engine owns it. Every function of every room is called with it held, but for those whose header says otherwise. A
// function that may let go of it meanwhile takes it as an argument: whoever calls one finds other states afterwards.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <mutex>
#include <string>

#include "device/driver.h"
#include "memory/counters.h"
#include "memory/policy.h"
#include "memory/range.h"
#include "order/stopwatch.h"

namespace vt {

using Lock = std::unique_lock<std::mutex>;

enum class Oversize : std::uint8_t {
  borrow,  // what cannot be brought in is used in place in the host store: slow, and right
  raise,   // an allocation that would need borrowing throws OutOfMemory instead
};

struct EngineConfig {
  std::size_t budget_chunks = 0;
  VictimOrder order = VictimOrder::lru;
  Granularity granularity = Granularity::chunk;
  Leaving leaving = Leaving::copy;
  Oversize oversize = Oversize::borrow;
  bool strict = false;  // ordered devices: absent addresses lead nowhere, at the price of a wait for each
};

struct Ground {
  Ground(Driver& device, const EngineConfig& settings)
      : driver(device),
        config(settings),
        chunk_bytes(device.chunk_bytes()),
        shift(static_cast<unsigned>(std::countr_zero(chunk_bytes))) {}

  bool copies() const noexcept { return config.leaving != Leaving::drop; }

  Driver& driver;
  const EngineConfig config;
  const Bytes chunk_bytes;
  const unsigned shift;           // chunk_bytes == 1 << shift
  Counters counters;              // each room counts what it does
  bool detached = false;          // no new tensors come; set by the front
  bool forked = false;            // this is a child; set by the front
  std::size_t remaking = 0;       // runs that recompute what was dropped: they must not fail for lack of chunks
  std::atomic<std::size_t> shortfall{0};  // chunks that plans lack, where nothing is copied; set without the lock
  std::size_t standing = 0;       // threads inside a call that have let go of the lock
  std::atomic<Tick> clock{1};     // counts operations; ticked and read without the lock
  std::atomic<bool> pressed{false};  // something had to leave, or nearly; read without the lock

  Stopwatch* stopwatch = nullptr;  // where the device waits: calls into the engine are no part of what rows take

  std::atomic<std::uint64_t> steps{0};  // calls that ended, copies that are done: something goes on; read without the lock

  Tick now() const noexcept { return clock.load(std::memory_order_relaxed); }
  void press() noexcept { pressed.store(true, std::memory_order_relaxed); }

  Bytes bytes_of(std::size_t chunks) const noexcept { return Bytes{chunks} << shift; }
  std::size_t chunks_for(Bytes bytes) const noexcept { return (bytes + chunk_bytes - 1) >> shift; }
  Address address_of(const Range& range, std::uint32_t index) const noexcept { return range.base + bytes_of(index); }
  // Of a vTensor, as far as its tensor reaches.
  Bytes bytes_in(const Range& range, std::uint32_t index) const noexcept {
    return std::min(chunk_bytes, range.bytes - bytes_of(index));
  }

  // For steps that undo others: tries again, and stops the program if a vTensor would be lost.
  template <typename Step>
  void must(const char* what, Step step) {
    Status status;
    for (int attempt = 0; attempt < 3; ++attempt) {
      status = step();
      if (status.ok()) return;
      ++counters.failures;
    }
    fatal(std::string(what) + " failed three times: " + describe(status));
  }

  // A call of the driver that waits, or moves bytes: without the lock.
  template <typename Call>
  void let_go(Lock& lock, Call call) {
    ++standing;
    lock.unlock();
    call();
    lock.lock();
    --standing;
  }
  void step() noexcept { steps.store(steps.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }
};

// A call into the engine: holds the lock, and is a step when it ends.
struct Call {
  Call(std::mutex& mutex, Ground& on) : lock(mutex), ground(on) {
    if (ground.stopwatch != nullptr) ground.stopwatch->call_begins();
  }
  ~Call() {
    if (ground.stopwatch != nullptr) ground.stopwatch->call_ends();
    ground.step();
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  Lock lock;
  Ground& ground;
};

}  // namespace vt
