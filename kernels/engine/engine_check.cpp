// Engine: the picture it gives of itself, and the check that the picture is whole. See engine.h.

#include <unistd.h>

#include <algorithm>
#include <numeric>

#include "engine/engine.h"

namespace vt {

Snapshot Engine::snapshot() {
  Lock lock(mutex_);
  Snapshot shot;
  shot.counters = counters_;
  shot.chunk_bytes = chunk_bytes_;
  shot.budget_chunks = pool_.capacity();
  shot.held_chunks = pool_.held();
  shot.peak_held_chunks = pool_.peak_held();
  shot.cached_chunks = cache_.chunks();
  shot.peak_used_chunks = used_peak_;
  shot.ranges = live_;
  shot.slots_peak = slots_peak_;
  shot.moved_out = copies_.moved(Lane::out);
  shot.moved_in = copies_.moved(Lane::in);
  shot.copies_out = copies_.done(Lane::out);
  shot.copies_in = copies_.done(Lane::in);
  shot.host_waits = order_.waits();
  shot.overdrawn_chunks = pool_.overdrawn();
  shot.peak_overdrawn_chunks = pool_.peak_overdrawn();
  if (!drained_) {
    shot.slots_used = store_->held();
    shot.slots_capacity = store_->capacity();
    shot.pinned = store_->pinned() + in_place_.count() * chunk_bytes_;
    shot.host_name = store_->name();
    shot.handles = driver_->live();
    shot.moves_in_wait = driver_->moves_in_wait();
    shot.out_times = driver_->times(Lane::out);
    shot.in_times = driver_->times(Lane::in);
  }
  return shot;
}

void Engine::reset_peaks() {
  Lock lock(mutex_);
  counters_.reset_peaks();
  pool_.reset_peak();
  used_peak_ = pool_.held() - cache_.chunks();
  slots_peak_ = drained_ ? 0 : store_->held();
}

std::string Engine::out_of_memory(const Status& why, Bytes bytes, const char* operation) const {
  std::size_t pinned = 0;
  for (const auto& range : records_) {
    if (range->life != Life::live) continue;
    if (range->pins.load() != 0) {
      pinned += range->chunks;
    } else {
      for (std::uint32_t i = 0; i < range->chunks; ++i) pinned += range->parts[i].pins != 0;
    }
  }
  std::string text = "vtensor: cannot allocate " + format_bytes(bytes);
  if (operation != nullptr) text += std::string(" for ") + operation;
  text += ": " + describe(why) + ".\n  budget " + format_bytes(pool_.capacity() << shift_) + ", in use " +
          format_bytes((pool_.held() - cache_.chunks()) << shift_) + ", pinned by running operations " +
          format_bytes(pinned << shift_) + "; live tensors " + format_bytes(counters_.tensor_bytes.current) +
          "; host store (" + store_->name() + ") " + format_bytes(store_->used() * chunk_bytes_) + " of " +
          format_bytes(store_->capacity() * chunk_bytes_) + " used.\n  ";
  switch (why.code) {
    case Code::host_full:
      text += "What would help: a larger host store (host=, or spill_dir= on a disk with room), or a smaller batch.";
      break;
    case Code::nothing_leaves:
      text += "One operation needs more than the budget at once. What would help: a budget of at least " +
              format_bytes((pinned << shift_) + bytes) + ", oversize=\"borrow\" (slower, but it runs), or a smaller batch.";
      break;
    default:
      text += "What would help: trying again with a smaller batch or a larger budget, and the cause named above.";
  }
  return text + "\n  All existing tensors are intact.";
}

void Engine::warn_oversize(const char* operation, bool overdrawn) const {
  static std::atomic<bool> warned{false};
  if (warned.exchange(true)) return;
  // Straight to stderr, and without stdio: this may run inside an operation or a signal handler.
  const std::string text = std::string("vtensor: ") + (operation != nullptr ? operation : "an operation") +
                           " needs more than the budget of " + format_bytes(pool_.capacity() << shift_) +
                           " at once; " +
                           (overdrawn ? "it gets more for as long as it runs (memory_stats()['overdrawn_bytes.peak'])"
                                      : "part of it is used in place in the host store, which is slow") +
                           ". Said once; memory_stats()['oversize'] counts.\n";
  if (write(STDERR_FILENO, text.data(), text.size()) < 0) return;  // nobody listens
}

std::string Engine::validate_range(const Range& range) const {
  std::uint32_t resident = 0, clean = 0, pins = 0;
  for (std::uint32_t i = 0; i < range.chunks; ++i) {
    const VTensor& part = range.parts[i];
    if (!consistent(part)) {
      return std::string("a vTensor in state ") + name_of(part.state) + " holds the wrong handles";
    }
    resident += part.state == State::resident;
    clean += part.clean();
    pins += part.pins;
    // An exported vTensor is unmapped only if the device once refused to map it; then the fault handler serves it.
    if (range.exported && (part.clean() || (part.state == State::absent && counters_.failures == 0))) {
      return "an exported vTensor is clean or not mapped";
    }
  }
  if (resident != range.resident) return "the resident count of a range is wrong";
  if (clean != range.clean.load()) return "the clean count of a range is wrong";
  if (pins != range.part_pins) return "the pin count of a range is wrong";
  if (range.missing.load() != range.chunks - resident) return "the missing count of a range is wrong";
  const bool listed = range.roster_at < roster_.size() && roster_[range.roster_at] == &range;
  if (listed != (resident > 0)) return "the roster and a range disagree";
  return "";
}

std::string Engine::validate() {
  Lock lock(mutex_);
  if (drained_) return "";
  if (std::string broken = pool_.validate(); !broken.empty()) return broken;
  if (std::string broken = space_->validate(); !broken.empty()) return broken;
  std::size_t chunks = 0, slots = 0, live = 0, addresses = space_->free_chunks();
  Bytes tensor_bytes = 0, absent = 0;
  for (const auto& range : records_) {
    if (range->life == Life::unused) continue;
    addresses += range->chunks;
    if (range->life == Life::cached) chunks += range->chunks;
    if (range->life == Life::limbo) {  // a slot the device uses in place
      slots += static_cast<std::size_t>(std::count_if(&range->parts[0], &range->parts[0] + range->chunks,
                                                      [](const VTensor& part) { return part.slot != kNone; }));
    }
    if (range->life != Life::live) continue;
    if (std::string broken = validate_range(*range); !broken.empty()) return broken;
    ++live;
    tensor_bytes += range->bytes;
    for (std::uint32_t i = 0; i < range->chunks; ++i) {
      const VTensor& part = range->parts[i];
      chunks += part.chunk != kNone;
      slots += part.slot != kNone;
      if (part.state != State::resident && part.state != State::leaving) absent += bytes_in(*range, i);
      if (table_[(address_of(*range, i) - base_) >> shift_].load() != range.get()) return "the address table is wrong";
    }
  }
  // Chunks of a range that another thread is building now belong to nobody yet.
  if (waiting_ == 0 && chunks != pool_.held()) return "chunks held by vTensors and by the pool differ";
  if (waiting_ == 0 && slots != store_->held()) return "slots held by vTensors and by the store differ";
  if (waiting_ == 0 && addresses != table_entries_) return "addresses are lost";
  if (live != live_) return "the count of live ranges is wrong";
  if (tensor_bytes != counters_.tensor_bytes.current) return "tensor_bytes is wrong";
  if (absent != counters_.absent_bytes.current) return "absent_bytes is wrong";
  return "";
}

}  // namespace vt
