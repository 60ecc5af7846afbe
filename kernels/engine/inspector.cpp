#include "engine/inspector.h"

#include <algorithm>
#include <cerrno>

#include "engine/messages.h"

namespace vt {

Snapshot Inspector::snapshot() {
  Lock lock(mutex_);
  return picture();
}

bool Inspector::busy() {
  const Lock lock(mutex_, std::try_to_lock);
  return !lock.owns_lock() || ground_.standing > 0;
}

bool Inspector::look(Snapshot* shot, std::string* broken) {
  const Lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return false;
  *shot = picture();
  *broken = this->broken();
  return true;
}

Snapshot Inspector::picture() const {
  Snapshot shot;
  shot.counters = ground_.counters;
  shot.chunk_bytes = ground_.chunk_bytes;
  shot.budget_chunks = pool_.capacity();
  shot.held_chunks = pool_.held();
  shot.peak_held_chunks = pool_.peak_held();
  shot.cached_chunks = chunks_.idle();
  shot.peak_used_chunks = chunks_.peak_used();
  shot.ranges = roster_.live();
  shot.slots_peak = slots_.peak();
  shot.moved_out_bytes = copies_.moved(Lane::out);
  shot.moved_in_bytes = copies_.moved(Lane::in);
  shot.copies_in = copies_.done(Lane::in);
  shot.host_waits = streams_ != nullptr ? streams_->waits() : 0;
  shot.overdrawn_chunks = pool_.overdrawn();
  shot.peak_overdrawn_chunks = pool_.peak_overdrawn();
  if (!closed_) {
    shot.slots_used = slots_.store().held();
    shot.slots_capacity = slots_.store().capacity();
    shot.pinned = slots_.pinned();
    shot.host_name = slots_.store().name();
    shot.handles = ground_.driver.live();
    shot.moves_in_wait = ground_.driver.hands() == Hands::in_wait;
    shot.out_times = ground_.driver.times(Lane::out);
    shot.in_times = ground_.driver.times(Lane::in);
  }
  return shot;
}

void Inspector::reset_peaks() {
  Lock lock(mutex_);
  ground_.counters.reset_peaks();
  pool_.reset_peak();
  chunks_.reset_peak();
  if (!closed_) slots_.reset_peak();
}

Residency Inspector::residency(const void* address) {
  Residency result;
  Lock lock(mutex_);
  const Range* range = ranges_.find_live(address);
  if (range == nullptr) return result;
  result.chunks = range->chunks;
  for (std::uint32_t i = 0; i < range->chunks; ++i) {
    ++result.in_state[static_cast<std::size_t>(range->parts[i].state)];
    result.clean += range->parts[i].clean();
  }
  return result;
}

std::vector<Piece> Inspector::pieces(const void* address) {
  std::vector<Piece> result;
  Lock lock(mutex_);
  const Range* range = ranges_.find_live(address);
  if (range == nullptr) return result;
  for (std::uint32_t i = 0; i < range->chunks; ++i) {
    const VTensor& part = range->parts[i];
    result.push_back({ground_.address_of(*range, i), ground_.bytes_in(*range, i), part.state, part.clean(), part.took_from});
  }
  return result;
}

bool Inspector::fits() {
  Lock lock(mutex_);
  return ground_.counters.wanted_bytes.current <= ground_.bytes_of(pool_.capacity());
}

std::string Inspector::validate() {
  Lock lock(mutex_);
  return broken();
}

std::string Inspector::broken() const {
  if (closed_) return "";
  const bool whole = ground_.standing == 0;  // else chunks of a range that another thread is making belong to nobody yet
  if (std::string broken = pool_.validate(); !broken.empty()) return broken;
  if (std::string broken = ranges_.validate(whole); !broken.empty()) return broken;
  std::size_t chunks = 0, slots = 0, live = 0;
  Bytes absent = 0, dropped = 0, tensor_bytes = 0;
  for (const auto& range : ranges_.records()) {
    if (range->life == Life::cached) chunks += range->chunks;
    if (range->life == Life::limbo) {  // a slot the device uses in place
      slots += static_cast<std::size_t>(std::count_if(&range->parts[0], &range->parts[0] + range->chunks,
                                                      [](const VTensor& part) { return part.slot != kNone; }));
    }
    if (range->life != Life::live) continue;
    if (std::string broken = roster_.validate(*range); !broken.empty()) return broken;
    ++live;
    tensor_bytes += range->bytes;
    for (std::uint32_t i = 0; i < range->chunks; ++i) {
      const VTensor& part = range->parts[i];
      chunks += part.chunk != kNone;
      slots += part.slot != kNone;
      if (part.state == State::dropped) dropped += ground_.bytes_in(*range, i);
      if (part.state == State::absent || part.state == State::arriving || part.state == State::borrowed) {
        absent += ground_.bytes_in(*range, i);
      }
    }
  }
  if (whole && chunks != pool_.held()) return "chunks held by vTensors and by the pool differ";
  if (whole && slots != slots_.store().held() + slots_.store().lent()) return "slots held by vTensors and by the store differ";
  if (live != roster_.live()) return "the count of live ranges is wrong";
  if (tensor_bytes != ground_.counters.tensor_bytes.current) return "tensor_bytes is wrong";
  if (absent != ground_.counters.absent_bytes.current) return "absent_bytes is wrong";
  if (dropped != ground_.counters.dropped_bytes.current) return "dropped_bytes is wrong";
  return remake_.validate();
}

std::size_t Inspector::pinned_chunks() const {
  std::size_t pinned = 0;
  for (const auto& range : ranges_.records()) {
    if (range->life != Life::live) continue;
    if (range->pins.load() != 0) {
      pinned += range->chunks;
    } else {
      for (std::uint32_t i = 0; i < range->chunks; ++i) {
        const VTensor& part = range->parts[i];
        pinned += part.pins != 0 || (range->stays() && part.state == State::resident);
      }
    }
  }
  return pinned;
}

std::string Inspector::out_of_memory(const Status& why, Bytes bytes, const char* operation) const {
  const Bytes pinned = ground_.bytes_of(pinned_chunks());
  const Bytes needed = pinned + ground_.bytes_of(ground_.chunks_for(bytes));
  const HostStore& store = slots_.store();
  std::string text = "vtensor: cannot allocate " + format_bytes(bytes);
  if (operation != nullptr) text += std::string(" for ") + operation;
  const bool copies = ground_.copies();
  const bool alone = why.code == Code::nothing_leaves && ground_.chunks_for(bytes) > pool_.capacity();
  text += ": " + (alone ? "it alone is larger than the budget" : why_no_chunk(why, copies)) + ".\n  budget " +
          format_bytes(ground_.bytes_of(pool_.capacity())) + ", in use " +
          format_bytes(ground_.bytes_of(chunks_.used())) + ", held by what runs (operations, files being written) " +
          format_bytes(pinned) +
          "; live tensors " + format_bytes(ground_.counters.tensor_bytes.current) + "; host store (" + store.name() + ") " +
          format_bytes(ground_.bytes_of(store.used())) + " of " + format_bytes(ground_.bytes_of(store.capacity())) +
          " used.\n  ";
  switch (why.code) {
    case Code::host_full:
      text += why.error == EFBIG
                  ? "What would help: files that may be larger (ulimit -f), or a smaller batch."
                  : "What would help: a larger host store (host=, or spill_dir= on a disk with room), or a smaller batch.";
      break;
    case Code::nothing_leaves:
      if (!copies && needed <= ground_.bytes_of(pool_.capacity())) {
        text += "What would help: a larger budget, recompute='auto', or a smaller batch.";
        break;
      }
      text += "One operation needs more than the budget at once. What would help: a budget of at least " +
              format_bytes(needed) + ", oversize=\"borrow\" (slower, but it runs), or a smaller batch.";
      break;
    default:
      text += "What would help: trying again with a smaller batch or a larger budget, and the cause named above.";
  }
  return text + "\n  All existing tensors are intact.";
}

}  // namespace vt
