// Virtual tensor memory over one device: allocations, operations, evictions.
//
// Covers: the one lock, and every step that changes where a vTensor's data is.
// Leaves: what a device is (driver.h), who is an operation's argument (torch_bridge.cpp), whose turn it is to leave
// (policy.h), Python (module.cpp).
//
// It is implemented in engine.cpp (the beginning and the end of tensors), engine_budget.cpp (another budget, the end of managing),
// engine_move.cpp (evict, fetch), engine_slots.cpp (the host store's slots, borrowing), engine_use.cpp (operations, faults, exports,
// fork), engine_plan.cpp (moves a plan asks for), engine_order.cpp (moves on a device whose work goes on after the call that asked for
// it), engine_former.cpp (where addresses lead there), engine_check.cpp (validate() and the messages).
//
// Thread-safety: every public call may come from any thread. Lock order: Engine::mutex_, then a driver's own
// mutexes. Waiting for copies is done with the lock released, and copy threads never take it.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "memory/address_space.h"
#include "memory/chunk_pool.h"
#include "memory/copy_engine.h"
#include "memory/counters.h"
#include "store/host_store.h"
#include "memory/in_place.h"
#include "memory/policy.h"
#include "memory/range_cache.h"

namespace vt {

enum class Oversize : std::uint8_t {
  borrow,  // what cannot be brought in is used in place in the host store: slow, and right
  raise,   // an allocation that would need borrowing throws OutOfMemory instead
};

enum class FaultOutcome : std::uint8_t {
  foreign,  // no live tensor lies there
  served,   // it can be touched now
  idle,     // there was nothing to do: another thread was faster, or the fault is a real error
};

struct EngineConfig {
  std::size_t budget_chunks = 0;
  Order order = Order::lru;
  Granularity granularity = Granularity::chunk;
  Oversize oversize = Oversize::borrow;
};

// Where the bytes of one tensor are now.
struct Residency {
  std::size_t chunks = 0;
  std::size_t in_state[kStates] = {};
  std::size_t clean = 0;
};

// One vTensor as a person asks for it.
struct Piece {
  Address address;
  Bytes bytes;
  State state;
  bool clean;
  Address took_from;
};

// A consistent picture of the counters and of what is held.
struct Snapshot {
  Counters counters;
  Bytes chunk_bytes = 0;
  std::size_t budget_chunks = 0, held_chunks = 0, peak_held_chunks = 0, cached_chunks = 0;
  std::size_t peak_used_chunks = 0;  // held, without freed ranges that wait to be used again
  std::size_t ranges = 0;
  std::size_t slots_used = 0, slots_capacity = 0, slots_peak = 0;
  Bytes moved_out = 0, moved_in = 0;
  std::size_t copies_out = 0, copies_in = 0;
  Bytes pinned = 0;                  // of the host store
  std::uint64_t host_waits = 0;      // times a thread stood until the device had done something, on ordered devices
  std::size_t overdrawn_chunks = 0, peak_overdrawn_chunks = 0;  // beyond the budget, on ordered devices
  LaneTimes out_times, in_times;
  bool moves_in_wait = false;  // see driver.h
  LiveHandles handles;
  std::string host_name;
};

class Engine {
 public:
  using Lane = Ticket::Lane;

  // Throws InvalidUse if the addresses or the chunks cannot be had.
  Engine(std::unique_ptr<Driver> driver, std::unique_ptr<HostStore> store, const EngineConfig& config);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // --- allocations (engine.cpp, engine_budget.cpp) --------------------------------------------------------
  // Returns `bytes` (at least 1) of chunk-aligned memory, content unspecified, born split into vTensors; nullptr
  // once detached. Throws OutOfMemory; nothing changed then. `operation` names who asks, for the message; `stream` is where
  // the memory is used first, on ordered devices; `pinned`: by the operation that runs now.
  void* allocate(Bytes bytes, const char* operation = nullptr, Lane stream = Lane::none, bool pinned = false);
  // Pre: `address` came from allocate and is live. Never throws. keep: the addresses may stay mapped for another tensor.
  void free(void* address, bool keep = true) noexcept;
  // Grows or shrinks the budget; shrinking evicts what is too much. Throws OutOfMemory if that cannot be done
  // now (pinned vTensors, host store full); nothing is lost then.
  void resize(std::size_t budget_chunks);
  // Stops managing: whatever is absent is mapped in place (brought back, on an ordered device: throws OutOfMemory, and goes on
  // managing, if the device is full), so that live tensors stay valid without an observer.
  // When the last of them is freed, all memory, addresses and threads are given back.
  void detach();
  bool drained() const noexcept { return drained_.load(); }
  // Whether live tensors ever came near the budget (or something had to leave for another reason). Until then
  // nothing can be missing, and nobody needs to observe operations.
  bool pressed() const noexcept { return pressed_.load(std::memory_order_relaxed); }
  // Writes every vTensor that is not pinned out to the host store; gives cached memory back to the pool.
  void evict_all();

  // --- operations (engine_use.cpp) ------------------------------------------------------------------------
  bool contains(const void* address) const noexcept {
    return reinterpret_cast<Address>(address) - base_ < window_bytes_.load(std::memory_order_relaxed);
  }
  // The live range around `address`, or nullptr. Pre: the caller keeps it alive (it holds the tensor).
  Range* find(const void* address) const noexcept;
  // An operation begins: advances the clock of the policies.
  void tick() noexcept { clock_.store(clock_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }
  // Pins the whole range if nothing of it is missing. No lock, no system call.
  bool try_pin(Range& range, bool write) noexcept {
    range.pins.fetch_add(1);
    if (range.missing.load() == 0 && (!write || range.clean.load() == 0)) {
      range.last_use.store(clock_.load(std::memory_order_relaxed), std::memory_order_relaxed);
      return true;
    }
    range.pins.fetch_sub(1);
    return false;
  }
  // Pins all of `uses` one vTensor at a time, then makes each resident, or borrowed if no chunk can be had (I1).
  void pin_and_fetch(std::span<const Use> uses, const char* operation = nullptr);
  void unpin(const Use& use) noexcept;
  // vTensors [first, last) that hold bytes [from, to) of a range.
  Use whole(Range& range, bool write) const noexcept { return {&range, 0, range.chunks, write, true}; }
  Use part(Range& range, Bytes from, Bytes to, bool write) const noexcept;

  // --- ordered devices (engine_order.cpp) -----------------------------------------------------------------
  bool ordered() const noexcept { return ordered_; }
  // The lane of a stream, by the device's own name for it.
  Lane stream(void* native);
  // What `stream` does from now on finds the data of a pinned range in place.
  void ready_on(Lane stream, Range& range) {
    range.seen.store(true, std::memory_order_relaxed);
    const std::uint64_t ready = range.ready.load();
    if (!order_.waited_for(stream, ready)) come_after(stream, {Lane::in, ready});
  }
  // The operation that pinned the range has been asked of `stream`. Before unpin().
  void used_on(Lane stream, Range& range) noexcept;
  // What `stream` was asked for when the tensor is freed may still use it (torch's record_stream). Pre: live.
  void record_stream(const void* address, Lane stream);
  // Rows are timed from now on until they are read.
  void start_timing();
  // A row begins with what `stream` is asked for next. While rows are timed.
  void row_begins(Lane stream);
  // Nanoseconds from the first row to each, and until now; empty if the device did not tell. Stands until all that was asked is done.
  std::vector<std::uint64_t> row_times();
  // An operation has been asked of `stream`.
  void pulse(Lane stream) {
    if (pressed() && !drained()) order_.pulse(stream);
  }

  // --- plans (engine_plan.cpp) ----------------------------------------------------------------------------
  // Live tensors, oldest first, as `visit` sees them: under the lock, so that no other thread makes one of their records new.
  void living(const std::function<void(std::span<Range* const>)>& visit);
  // Starts copying `out`, and `in` as soon as chunks are free, in this order. What does not apply (freed, pinned, there
  // already) is passed over: a plan is advice (I4). Never waits.
  void move_by_plan(std::span<const PlannedMove> out, std::span<const PlannedMove> in) noexcept;
  // Whether arrivals wait for chunks, or copies for hands: the next call has something to do, also without new moves.
  bool moves_wait() const noexcept {
    return arrivals_wait_.load(std::memory_order_relaxed) || hands_wanted_.load(std::memory_order_relaxed);
  }
  void forget_arrivals() noexcept;

  // --- outside operations (engine_use.cpp) ----------------------------------------------------------------
  // Somebody touched `address` and could not.
  FaultOutcome on_fault(Address address) noexcept;
  // Makes a whole tensor resident now (the merge primitive); parts that do not fit the budget are borrowed.
  Residency merge(const void* address);
  // The address leaves our sight (numpy, DLPack, data_ptr): from now on never clean, and always mapped.
  void export_address(const void* address);
  // The same for who may use it at any moment: it never moves any more. Pre: pinned, and fetched.
  void fix_address(const void* address);
  Residency residency(const void* address);
  std::vector<Piece> pieces(const void* address);
  // Whether all live tensors would fit the budget at once: then nothing ever moves.
  bool fits();

  void before_fork();
  void after_fork(bool in_child);

  // --- looking at it (engine_check.cpp) -------------------------------------------------------------------
  Snapshot snapshot();
  void reset_peaks();
  // Empty, or the first invariant that is broken, in words.
  std::string validate();

 private:
  using Lock = std::unique_lock<std::mutex>;
  static constexpr std::uint64_t kFailedCopies = 2;  // more in one call, and the host store cannot be written

  // engine.cpp
  Range* new_range(std::uint32_t chunks);
  void recycle(Range& range);                          // addresses and record are free again, once nobody pins it
  void retire(Range& range);
  Range* build(Lock& lock, std::uint32_t chunks, Bytes bytes, const char* operation, Lane stream);
  Status back_part(Lock& lock, Range& range, std::uint32_t index);  // first chunk (or slot) behind a new vTensor
  void unback(Range& range);                           // takes chunks and slots from a range nobody owns
  void release_part(Range& range, std::uint32_t index);
  void become_live(Range& range, Bytes bytes, const char* operation);
  void note_use() noexcept { used_peak_ = std::max(used_peak_, pool_.held() - cache_.chunks()); }
  void sweep_limbo();

  // engine_budget.cpp
  void finish_if_drained(Lock& lock);

  // engine_move.cpp
  // While somebody needs a chunk now, planned arrivals stand back. Pre: the lock is held where it begins and ends.
  class Taking {
   public:
    explicit Taking(Engine& engine) : engine_(engine) { ++engine_.taking_; }
    ~Taking() {
      if (--engine_.taking_ == 0 && !engine_.arrivals_.empty()) engine_.pump_wakes_.notify_one();
    }
    Taking(const Taking&) = delete;
    Taking& operator=(const Taking&) = delete;

   private:
    Engine& engine_;
  };
  Address address_of(const Range& range, std::uint32_t index) const noexcept;
  Bytes bytes_in(const Range& range, std::uint32_t index) const noexcept;
  void enter(Range& range, std::uint32_t index, Event event);
  void enroll(Range& range);                           // into the roster, and out of it
  void strike(Range& range);
  // For the steps that undo others: tries again, and stops the program if a vTensor would be lost.
  void must(const char* what, Status (Engine::*step)(Range&, std::uint32_t), Range& range, std::uint32_t index);
  void assign(VTensor& part, ChunkId chunk);           // and note the swapped-by edge
  void take_away(Range& range, std::uint32_t index, bool leaving = false);  // its chunk is free now, or once it was copied
  Status map_part(Range& range, std::uint32_t index);  // its chunk; for reading only while it has a valid slot
  Status unmap_part(Range& range, std::uint32_t index);
  Status protect_part(Range& range, std::uint32_t index);
  Status unmap_borrowed(Range& range, std::uint32_t index);
  Status take_chunk(Lock& lock, std::size_t want, ChunkId* chunk, bool keep_graces = false);
  bool wait_for_room(Lock& lock, const Status& why);
  Status take_free(ChunkPool::Take which, ChunkId* chunk);
  void meet(ChunkId chunk);
  bool give_up_cached();
  Status evict_some(std::size_t want);
  Range* choose_victim() const;
  std::vector<std::uint32_t> victims_in(const Range& range) const;
  Status leave(Range& range, std::uint32_t index);
  Status leave_for_free(Range& range, std::uint32_t index);
  Status leave_by_copy(Range& range, std::uint32_t index);
  void stay(Range& range, std::uint32_t index);        // cancels a copy out
  Status arrive(Range& range, std::uint32_t index, ChunkId chunk);
  void reap();
  void after_copy_out(const CopyJob& job);
  void after_copy_in(const CopyJob& job);
  void wait_for(Lock& lock, Ticket ticket, bool exposed = true);  // exposed: an operation or allocation waits

  // engine_slots.cpp
  Status borrow(Range& range, std::uint32_t index);
  Status own_slot(VTensor& part);
  Status move_in_place(Range& range, std::uint32_t index);
  Status born_in_place(Range& range, std::uint32_t index);
  HostPlace place_of(SlotId slot) const;
  Status acquire_slot(SlotId* slot);
  void drop_slot(Range& range, std::uint32_t index);   // a clean resident vTensor becomes dirty
  void release_slot(Range& range, VTensor& part);

  // engine_use.cpp
  // What a fetch is for, and whether it had to borrow.
  struct Fetch {
    const char* operation;
    bool keep_graces = false;  // for a fault: what earlier faults brought must stay
    std::span<const Use> uses = {};
    bool borrowed = false;
  };
  void fetch(Lock& lock, std::span<const Use> uses, Fetch fetch);
  bool stays_borrowed(const Range& range, std::uint32_t index, const Fetch& fetch) const;
  bool fetch_part(Lock& lock, Range& range, std::uint32_t index, bool write, std::size_t want, Fetch& fetch);
  void pin_parts(const Use& use);
  void unpin_parts(const Use& use) noexcept;
  bool release_graces();
  void settle(Lock& lock);                             // no copy under way any more

  // engine_order.cpp
  void come_after(Lane later, Ticket earlier);
  Fence uses_of(const Range& range) const;             // and what brings its data
  Fence touched_by(const Range& range) const;          // and whatever may still touch its addresses
  void note_use_on(Lane stream, Range& range);
  void start_in_order(Range& range, Lane stream);      // a tensor begins its life on a stream
  Status take_in_order(const Range* range, std::uint32_t index, std::size_t want, ChunkId* chunk);
  void settle_leaving();                               // chunks whose copies ended are as free as any
  void give_back(ChunkId chunk);
  Status overdraw(ChunkId* chunk);
  Status bring_beyond(Range& range, std::uint32_t index);
  Status withdraw_in_order(Range& range, std::uint32_t index);
  void end_borrowing(Range& range);                    // of a dead tensor. Pre: nothing uses its addresses
  void repay();
  void restore_budget();
  Status leave_in_order(Range& range, std::uint32_t index);
  Status arrive_in_order(Range& range, std::uint32_t index, ChunkId chunk);
  void fence_slot(const Range& range, const VTensor& part);
  void reap_in_order();
  void quiesce(Lock& lock);                            // nothing is under way, nothing leads to a former chunk
  void bring_all(Lock& lock);
  void export_in_order(Lock& lock, Range& range);

  // engine_former.cpp
  bool take_former(const Range& range, std::uint32_t index, bool returns, ChunkId* chunk);
  Range* reuse_former(std::uint32_t chunks);
  void keep_former(Range& range);
  void retire_formers();
  Status back_in_order(Range& range, const char* operation);
  Status lead_to(Range& range, std::uint32_t first, std::span<const ChunkId> chunks);
  Status unmap_formers(Range& range, std::uint32_t first, std::uint32_t last);
  void forget_former(Range& range, const std::function<bool(const VTensor&)>& which);

  // engine_plan.cpp
  struct Arrival {
    Range* range;
    std::uint64_t serial;
    std::uint32_t index;
  };
  void pump();
  bool pump_one(const Arrival& arrival);
  bool pump_run();
  void leave_by_plan(const PlannedMove& move);
  void wake_pump();
  void lend_hands(Lock& lock);
  void run_pump();
  void stop_pump(Lock& lock);
  void forget_pump();

  // engine_check.cpp
  std::string out_of_memory(const Status& why, Bytes bytes, const char* operation) const;
  void warn_oversize(const char* operation, bool overdrawn = false) const;
  std::string validate_range(const Range& range) const;

  std::unique_ptr<Driver> driver_;
  const bool ordered_;
  const Bytes chunk_bytes_;
  const unsigned shift_;                               // chunk_bytes_ == 1 << shift_
  Address base_ = 0;
  std::atomic<Bytes> window_bytes_{0};
  std::atomic<Range*>* table_ = nullptr;               // one entry per chunk of the window
  std::size_t table_entries_ = 0;
  std::atomic<Tick> clock_{1};
  std::atomic<bool> drained_{false};
  std::atomic<bool> pressed_{false};
  std::atomic<bool> arrivals_wait_{false};
  std::atomic<bool> hands_wanted_{false};  // a copy began since somebody last lent hands (Driver::wants_hands)

  std::mutex mutex_;                                   // guards all that follows
  std::unique_ptr<HostStore> store_;
  EngineConfig config_;
  ChunkPool pool_;
  std::unique_ptr<AddressSpace> space_;
  CopyEngine copies_;
  StreamOrder order_;
  InPlace in_place_;                                   // ordered devices: slots that lie where the device can use them
  std::vector<Fence> chunk_after_, slot_after_;        // ordered devices: what a free chunk's or slot's next owner comes after
  RangeCache cache_;
  RangeCache formers_;
  std::vector<std::unique_ptr<Range>> records_;        // every record ever made
  std::vector<Range*> unused_;
  std::vector<Range*> limbo_;
  std::vector<Range*> roster_;                         // live ranges with something resident
  std::vector<Address> left_by_;                       // per chunk: the vTensor that left it last; 0 if a tensor died
  std::vector<Use> graces_;                            // vTensors a fault brought in, kept for a while
  std::size_t live_ = 0;
  std::size_t waiting_ = 0;                            // threads inside the driver without the lock
  std::size_t exported_leaving_ = 0;                   // unmapped although exported, until their copies are done
  std::size_t slots_peak_ = 0;
  std::size_t used_peak_ = 0;                          // chunks held by tensors at most
  std::deque<Arrival> arrivals_;                       // planned, waiting for chunks; in order
  std::thread* pump_ = nullptr;                        // starts them as copies out end; a pointer, as a forked child must drop it
  std::condition_variable pump_wakes_;
  bool pump_stops_ = false;
  std::size_t taking_ = 0;                             // threads that need a chunk now: arrivals stand back
  std::uint64_t serials_ = 0;
  Status last_failure_;                                // of the newest copy that failed
  std::uint64_t failed_copies_ = 0;
  bool detached_ = false;
  bool forked_ = false;                                // this is a child
  Counters counters_;
};

}  // namespace vt
