// Virtual tensor memory over one device: the front. Behind it are rooms, each with a state of its own, and one lock for all.
//
//   range_table  which tensor an address belongs to          chunks      who holds which chunk, and who left it
//   roster       states of vTensors, and their counts        allocation  memory for new tensors
//   freed        ranges whose tensors are gone               supply      taking chunks, making room, the budget's size
//   eviction     whose turn it is to leave                   pins        pins of single vTensors
//   uses         what operations and faults need             arrivals    moves a plan asks for, and the pump
//   streams      streams of ordered devices                  seats       which chunk a plan wants a vTensor to have there
//   remake       what leaves without a copy                  lending     content that lies in memory of others
//   inspector    looking at it all
//   mappings, slots, moves   what differs between kinds of device; kind.h chooses, once
//
// Covers: the lock, and what begins a call and ends it. Leaves: what a device is (driver.h), who is an operation's argument
// (torch_observer.cpp), Python (module.cpp).
//
// Thread-safety: every public call may come from any thread. Lock order: Engine::mutex_, then a driver's own
// mutexes. Waiting for copies is done with the lock released, and copy threads never take it. (Where an ordered device must be
// waited for at all the lock is held: `host_waits` counts that, and there is none in a steady state.)
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "engine/allocation.h"
#include "engine/arrivals.h"
#include "engine/inspector.h"
#include "engine/kind.h"
#include "engine/lending.h"
#include "engine/remake.h"
#include "engine/seats.h"
#include "engine/uses.h"

namespace vt {

class Engine {
 public:
  // Throws InvalidUse if the addresses or the chunks cannot be had.
  Engine(std::unique_ptr<Driver> driver, std::unique_ptr<HostStore> store, const EngineConfig& config);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // --- allocations ----------------------------------------------------------------------------------------
  // Returns `bytes` (at least 1) of chunk-aligned memory, content unspecified, born split into vTensors; nullptr
  // once detached. Throws OutOfMemory; nothing changed then. `operation` names who asks, for the message; `stream` is where
  // the memory is used first, on ordered devices; `pinned`: by the operation that runs now; `wish`: see seats.h.
  void* allocate(Bytes bytes, const char* operation = nullptr, Lane stream = Lane::none, bool pinned = false,
                 const Wish& wish = {});
  // Pre: `address` came from allocate and is live. Never throws. keep: the addresses may stay mapped for another tensor.
  void free(void* address, bool keep = true) noexcept;
  // Grows or shrinks the budget; shrinking evicts what is too much. Throws OutOfMemory if that cannot be done
  // now (pinned vTensors, host store full); nothing is lost then.
  void resize(std::size_t budget_chunks);
  // Writes every vTensor that is not pinned out to the host store; gives cached memory back to the pool.
  void evict_all();
  // Stops managing: whatever was dropped is recomputed, whatever is absent is mapped in place (brought back, on an ordered
  // device: throws OutOfMemory, and goes on managing, if the device is full), so that live tensors stay valid without an
  // observer.
  // When the last of them is freed, all memory, addresses and threads are given back.
  void detach();
  bool drained() const noexcept { return drained_.load(); }
  // Whether live tensors ever came near the budget (or something had to leave for another reason). Until then
  // nothing can be missing, and nobody needs to observe operations.
  bool pressed() const noexcept { return ground_.pressed.load(std::memory_order_relaxed); }

  // --- operations -----------------------------------------------------------------------------------------
  bool contains(const void* address) const noexcept { return ranges_.contains(address); }
  // The range around `address`, or nullptr. Pre: the caller keeps it alive (it holds the tensor).
  Range* find(const void* address) const noexcept { return ranges_.find(address); }
  // An operation begins: advances the clock of the policies.
  void tick() noexcept { ground_.clock.store(ground_.now() + 1, std::memory_order_relaxed); }
  // Pins the whole range if nothing of it is missing. No lock, no system call.
  bool try_pin(Range& range, bool write) noexcept {
    range.pins.fetch_add(1);
    if (range.missing.load() == 0 && (!write || range.clean.load() == 0)) {
      range.last_use.store(ground_.now(), std::memory_order_relaxed);
      return true;
    }
    range.pins.fetch_sub(1);
    return false;
  }
  // Pins all of `uses` one vTensor at a time, then makes each resident, or borrowed if no chunk can be had (I1).
  void pin_and_fetch(std::span<const Use> uses, const char* operation = nullptr);
  void unpin(const Use& use) noexcept;
  // vTensors [first, last) that hold bytes [from, to) of a range.
  Use part(Range& range, Bytes from, Bytes to, bool write) const noexcept;
  // What streams are asked for; nullptr on immediate devices, where none of it need be told.
  Streams* streams() noexcept { return streams_.get(); }

  // --- plans ----------------------------------------------------------------------------------------------
  // The program's live tensors, oldest first, as `visit` sees them: under the lock, so that no other thread makes one of their
  // records new.
  void living(const std::function<void(std::span<Range* const>)>& visit);
  // Starts copying `out`, and `in` as soon as chunks are free, in this order. Never waits. See arrivals.h.
  void move_by_plan(std::span<const PlannedMove> out, std::span<const PlannedMove> in) noexcept;
  // Whether the next call has something to do, also without new moves.
  bool moves_wait() const noexcept { return arrivals_.waits(); }
  void forget_arrivals() noexcept;

  // Which chunks a plan wants vTensors to have; nullptr on immediate devices, where mapping costs next to nothing.
  Seats* seats() noexcept { return seats_.get(); }

  // --- outside operations ---------------------------------------------------------------------------------
  // Somebody touched `address` and could not.
  FaultOutcome on_fault(Address address) noexcept;
  // Makes a whole tensor resident now (the merge primitive); parts that do not fit the budget are borrowed.
  Residency merge(const void* address);
  // The address leaves our sight (numpy, DLPack, data_ptr): from now on never clean, and always mapped. Pre, if it is `fixed`:
  // pinned, and fetched. False if it is nobody's. For a call `call_ended` is due then, before the tensor dies.
  bool export_address(const void* address, Export how = Export::for_good);
  void before_fork();
  void after_fork(bool in_child);

  // --- what can be recomputed -----------------------------------------------------------------------------
  Remake& remake() noexcept { return remake_; }

  // --- what lies in memory of others ------------------------------------------------------------------------
  Lending& lending() noexcept { return lending_; }

  // --- looking at it --------------------------------------------------------------------------------------
  Inspector& inspect() noexcept { return inspector_; }

 private:
  void finish_if_drained(Lock& lock);

  std::unique_ptr<Driver> driver_;
  std::unique_ptr<HostStore> store_;
  std::atomic<bool> drained_{false};
  std::mutex mutex_;  // guards all that follows
  Ground ground_;
  RangeTable ranges_;
  ChunkPool pool_;
  CopyEngine copies_;
  Roster roster_;
  Chunks chunks_;
  Kind kind_;
  Pins pins_;
  Demand demand_;
  Freed freed_;
  Remake remake_;
  Eviction eviction_;
  Supply supply_;
  Allocation allocation_;
  Uses uses_;
  Arrivals arrivals_;
  Lending lending_;
  std::unique_ptr<Streams> streams_;
  std::unique_ptr<Seats> seats_;
  Inspector inspector_;
};

}  // namespace vt
