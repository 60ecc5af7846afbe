// Engine: moving vTensors between their chunks and the host store. See engine.h; the states are in residency.h, what a vTensor has
// in the host store is in engine_slots.cpp.
//
// Every step here either happens whole or leaves what it found (I6), and data is dropped in one place only after
// it is valid in another (I2). All run under the engine's lock; only wait_for() lets go of it.

#include <algorithm>
#include <chrono>

#include "engine/engine.h"

namespace vt {

Address Engine::address_of(const Range& range, std::uint32_t index) const noexcept {
  return range.base + (Bytes{index} << shift_);
}

Bytes Engine::bytes_in(const Range& range, std::uint32_t index) const noexcept {
  return std::min(chunk_bytes_, range.bytes - (Bytes{index} << shift_));
}

// Applies an event and keeps every count that depends on the state. `missing` counts a vTensor from before its
// eviction starts (see range.h), so leaving `resident` does not add to it again.
void Engine::enter(Range& range, std::uint32_t index, Event event) {
  VTensor& part = range.parts[index];
  const State before = part.state;
  const auto after = next_state(before, event);
  if (!after) fatal(std::string("event ") + name_of(event) + " in state " + name_of(before));
  part.state = *after;
  if ((event == Event::evict || event == Event::fetch) && driver_->wants_hands()) {
    hands_wanted_.store(true, std::memory_order_relaxed);
  }
  const auto in_host = [](State s) { return s == State::absent || s == State::arriving || s == State::borrowed; };
  const Bytes bytes = bytes_in(range, index);
  if (in_host(*after) && !in_host(before)) counters_.absent_bytes.add(bytes);
  if (!in_host(*after) && in_host(before)) counters_.absent_bytes.sub(bytes);
  if (*after == State::borrowed) counters_.borrowed_bytes.add(bytes);
  if (before == State::borrowed) counters_.borrowed_bytes.sub(bytes);
  if (before == State::resident && --range.resident == 0) strike(range);
  if (*after == State::resident) {
    if (range.resident++ == 0) enroll(range);
    range.missing.fetch_sub(1);
  }
}

void Engine::enroll(Range& range) {
  range.roster_at = static_cast<std::uint32_t>(roster_.size());
  roster_.push_back(&range);
}

void Engine::strike(Range& range) {
  roster_[range.roster_at] = roster_.back();
  roster_[range.roster_at]->roster_at = range.roster_at;
  roster_.pop_back();
  range.roster_at = kNone;
}

void Engine::must(const char* what, Status (Engine::*step)(Range&, std::uint32_t), Range& range, std::uint32_t index) {
  Status status;
  for (int attempt = 0; attempt < 3; ++attempt) {
    status = (this->*step)(range, index);
    if (status.ok()) return;
    ++counters_.failures;
  }
  fatal(std::string(what) + " failed three times: " + describe(status));
}

void Engine::assign(VTensor& part, ChunkId chunk) {
  part.chunk = chunk;
  part.took_from = left_by_[chunk];
}

void Engine::take_away(Range& range, std::uint32_t index, bool leaving) {
  VTensor& part = range.parts[index];
  left_by_[part.chunk] = address_of(range, index);
  leaving ? pool_.release_leaving(part.chunk) : pool_.release(part.chunk);
  part.chunk = kNone;
}

Status Engine::map_part(Range& range, std::uint32_t index) {
  const VTensor& part = range.parts[index];
  return driver_->map(address_of(range, index), part.chunk, part.slot != kNone ? Access::read : Access::write);
}

Status Engine::unmap_part(Range& range, std::uint32_t index) { return driver_->unmap(address_of(range, index)); }

Status Engine::protect_part(Range& range, std::uint32_t index) {
  return driver_->protect(address_of(range, index), Access::write);
}

Status Engine::unmap_borrowed(Range& range, std::uint32_t index) {
  return driver_->unmap_host(address_of(range, index));
}

// --- room --------------------------------------------------------------------------------------------------

// Takes a free chunk, making room if need be. `want`: how many the caller needs in all, so that evictions start
// together and their copies overlap. The lock may be released meanwhile: states can change.
Status Engine::take_chunk(Lock& lock, std::size_t want, ChunkId* chunk, bool keep_graces) {
  const Taking taking(*this);
  const std::uint64_t failed_before = failed_copies_;
  for (;;) {
    reap();
    if (exported_leaving_ > 0) {  // whoever holds their addresses may read them as soon as the caller returns
      wait_for(lock, *copies_.oldest(Lane::out));
      continue;
    }
    const Status status = take_free(ChunkPool::Take::newest, chunk);
    if (status.code != Code::out_of_budget) return status;
    if (failed_copies_ > failed_before + kFailedCopies) return last_failure_;  // the host store cannot be written
    Status why{Code::nothing_leaves, "", 0};
    while (pool_.free() == 0 && copies_.under_way(Lane::out) < want) {
      why = evict_some(want - copies_.under_way(Lane::out));
      if (!why.ok()) break;
    }
    if (pool_.free() > 0) continue;
    if (wait_for_room(lock, why)) continue;
    if (why.code != Code::nothing_leaves || keep_graces || !release_graces()) return why;
  }
}

// Waits for the copy out that ends first; if there is none because nothing leaves, for one in: what a plan brings back early
// holds a chunk, and can leave again once it is there. False if no copy is under way.
bool Engine::wait_for_room(Lock& lock, const Status& why) {
  auto ticket = copies_.oldest(Lane::out);
  if (!ticket && why.code == Code::nothing_leaves) ticket = copies_.oldest(Lane::in);
  if (ticket) wait_for(lock, *ticket);
  return ticket.has_value();
}

// A chunk for which nothing need leave. What freed tensors hold is better than what is still copied out.
Status Engine::take_free(ChunkPool::Take which, ChunkId* chunk) {
  if (pool_.free() == pool_.leaving()) settle_leaving();
  for (;;) {
    const Status status = pool_.acquire(chunk, which);
    if (status.ok()) meet(*chunk);
    if (status.code != Code::out_of_budget && status.code != Code::refused) return status;
    if (give_up_cached()) continue;
    return pool_.acquire_leaving(chunk) ? kOk : status;
  }
}

// A chunk may be new, and its number beyond the budget's: one that was refused once may be made later, beside one overdrawn instead.
void Engine::meet(ChunkId chunk) {
  if (chunk >= left_by_.size()) left_by_.resize(chunk + 1);
  if (ordered_ && chunk >= chunk_after_.size()) chunk_after_.resize(chunk + 1);
}

// Unmaps the freed range that nobody asked for the longest. False if there is none.
bool Engine::give_up_cached() {
  Range* range = cache_.take_oldest();
  if (range == nullptr) return false;
  unback(*range);
  recycle(*range);
  return true;
}

// Starts the eviction of up to `want` vTensors of the best victim (all of it with whole-tensor granularity).
Status Engine::evict_some(std::size_t want) {
  pressed_.store(true, std::memory_order_relaxed);
  while (Range* victim = choose_victim()) {
    std::size_t started = 0;
    for (const std::uint32_t index : victims_in(*victim)) {
      if (started >= want && config_.granularity == Granularity::chunk) break;
      victim->missing.fetch_add(1);
      const bool pinned = victim->pins.load() != 0;  // an operation was faster: look for another victim
      const Status status = pinned ? kOk : leave(*victim, index);
      if (pinned || !status.ok()) victim->missing.fetch_sub(1);
      if (pinned) break;
      if (!status.ok()) return started > 0 ? kOk : status;
      ++started;
    }
    if (started > 0) return kOk;
  }
  return {Code::nothing_leaves, "", 0};
}

Range* Engine::choose_victim() const {
  const Tick now = clock_.load(std::memory_order_relaxed);
  Range* best = nullptr;
  double best_score = -1.0;
  for (Range* range : roster_) {
    if (range->pins.load() != 0 || range->fixed || (ordered_ && (range->exported || !range->seen.load()))) continue;
    Tick use = range->last_use.load(std::memory_order_relaxed);
    if (range->part_pins != 0 || !range->part_use.empty()) {
      const auto victims = victims_in(*range);
      if (victims.empty()) continue;
      if (!range->part_use.empty()) use = std::max(use, range->part_use[victims.front()]);
    }
    const double value = score(config_.order, {use, Bytes{range->resident} << shift_}, now);
    if (value > best_score) {
      best = range;
      best_score = value;
    }
  }
  return best;
}

// The vTensors of a range that may leave, longest unused first.
std::vector<std::uint32_t> Engine::victims_in(const Range& range) const {
  std::vector<std::uint32_t> victims;
  for (std::uint32_t i = 0; i < range.chunks; ++i) {
    if (range.parts[i].state == State::resident && range.parts[i].pins == 0) victims.push_back(i);
  }
  if (!range.part_use.empty()) {
    std::stable_sort(victims.begin(), victims.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return range.part_use[a] < range.part_use[b]; });
  }
  return victims;
}

// --- out ---------------------------------------------------------------------------------------------------

// Pre: resident, unpinned, already counted in `missing`.
Status Engine::leave(Range& range, std::uint32_t index) {
  if (ordered_) return leave_in_order(range, index);
  return range.parts[index].clean() ? leave_for_free(range, index) : leave_by_copy(range, index);
}

Status Engine::leave_for_free(Range& range, std::uint32_t index) {
  const Status status = unmap_part(range, index);
  if (!status.ok()) return status;
  take_away(range, index);
  range.clean.fetch_sub(1);
  ++counters_.discards;
  enter(range, index, Event::discard);
  return kOk;
}

Status Engine::leave_by_copy(Range& range, std::uint32_t index) {
  VTensor& part = range.parts[index];
  SlotId slot = kNone;
  Status status = acquire_slot(&slot);
  if (!status.ok()) return status;
  status = unmap_part(range, index);
  if (status.ok()) {
    status = copies_.start(Lane::out, range, index, store_->place(slot), bytes_in(range, index));
    if (!status.ok()) must("mapping a chunk back", &Engine::map_part, range, index);
  }
  if (!status.ok()) {
    store_->release(slot);
    return status;
  }
  part.slot = slot;
  exported_leaving_ += range.exported;
  enter(range, index, Event::evict);
  return kOk;
}

void Engine::after_copy_out(const CopyJob& job) {
  VTensor& part = job.range->parts[job.index];
  part.ticket = {};
  exported_leaving_ -= job.range->exported;
  if (job.state != CopyState::done) {
    last_failure_ = {Code::failed, "copy to the host store", job.error};
    ++counters_.failures;
    ++failed_copies_;
    store_->release(part.slot);
    part.slot = kNone;
    must("mapping a chunk back", &Engine::map_part, *job.range, job.index);
    enter(*job.range, job.index, Event::stay);
    return;
  }
  ++counters_.evictions;
  take_away(*job.range, job.index);
  enter(*job.range, job.index, Event::left);
  if (job.range->exported && !borrow(*job.range, job.index).ok()) ++counters_.failures;
}

void Engine::stay(Range& range, std::uint32_t index) {
  VTensor& part = range.parts[index];
  exported_leaving_ -= range.exported;
  const bool copied = copies_.cancel(part) == CopyState::done;
  if (copied && !range.exported) {
    range.clean.fetch_add(1);
  } else {
    store_->release(part.slot);
    part.slot = kNone;
  }
  must("mapping a chunk back", &Engine::map_part, range, index);
  ++counters_.cancels;
  enter(range, index, Event::stay);
}

// --- in ----------------------------------------------------------------------------------------------------

// Pre: absent or borrowed. On success the vTensor owns `chunk`; else the caller still does.
Status Engine::arrive(Range& range, std::uint32_t index, ChunkId chunk) {
  if (ordered_) return arrive_in_order(range, index, chunk);
  VTensor& part = range.parts[index];
  if (part.state == State::borrowed) {
    const Status status = unmap_borrowed(range, index);
    if (!status.ok()) return status;
    enter(range, index, Event::withdraw);
  }
  assign(part, chunk);
  const Status status = copies_.start(Lane::in, range, index, store_->place(part.slot), bytes_in(range, index));
  if (!status.ok()) {
    part.chunk = kNone;
    if (range.exported && !borrow(range, index).ok()) ++counters_.failures;
    return status;
  }
  enter(range, index, Event::fetch);
  note_use();
  return kOk;
}

void Engine::after_copy_in(const CopyJob& job) {
  Range& range = *job.range;
  VTensor& part = range.parts[job.index];
  part.ticket = {};
  part.planned = false;
  Status status = job.state == CopyState::done ? kOk : Status{Code::failed, "copy from the host store", job.error};
  if (status.ok()) {
    const bool clean = !part.write_wanted && !range.exported;
    status = driver_->map(address_of(range, job.index), part.chunk, clean ? Access::read : Access::write);
    if (status.ok()) {
      part.write_wanted = false;
      part.failures = 0;
      if (clean) {
        range.clean.fetch_add(1);
      } else {
        store_->release(part.slot);
        part.slot = kNone;
      }
      enter(range, job.index, Event::arrived);
      return;
    }
  }
  last_failure_ = status;
  ++counters_.failures;
  ++part.failures;
  pool_.release(part.chunk);
  part.chunk = kNone;
  enter(range, job.index, Event::turn_back);
  if (range.exported && !borrow(range, job.index).ok()) ++counters_.failures;
}

// --- ends of copies ----------------------------------------------------------------------------------------

void Engine::reap() {
  if (ordered_) return reap_in_order();
  while (const auto job = copies_.collect(Lane::out)) after_copy_out(*job);
  while (const auto job = copies_.collect(Lane::in)) after_copy_in(*job);
}

void Engine::wait_for(Lock& lock, Ticket ticket, bool exposed) {
  const auto begun = std::chrono::steady_clock::now();
  ++waiting_;
  lock.unlock();
  copies_.wait(ticket);
  lock.lock();
  --waiting_;
  if (!exposed) return;
  const auto waited = std::chrono::steady_clock::now() - begun;
  counters_.wait_ns += static_cast<std::uint64_t>(std::chrono::nanoseconds(waited).count());
}

void Engine::settle(Lock& lock) {
  for (;;) {
    reap();
    auto ticket = copies_.oldest(Lane::out);
    if (!ticket) ticket = copies_.oldest(Lane::in);
    if (!ticket) return;
    wait_for(lock, *ticket);
  }
}

}  // namespace vt
