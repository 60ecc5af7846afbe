// Engine: moves on a device whose work goes on after the call that asked for it (a GPU). See engine.h and stream_order.h.
//
// Here a vTensor is absent as soon as its copy out is asked for, and resident as soon as its copy in is: no thread stands. What
// must wait is the device. Each chunk and each slot that is given up carries a fence, and its next owner comes after it:
//
//   - a copy out comes after the uses of its chunk, and after the reads of the slot it writes;
//   - a copy in comes after the fence of its chunk. That it also comes after the copy that wrote its slot follows: either the
//     chunk is the one the data left, and its fence lies behind that copy, or the address led elsewhere, and lead_to() saw to it;
//   - a stream that allocates comes after the fences of the chunks it gets;
//   - a stream that uses a tensor comes after the copies that brought it.
//
// A chunk whose copy out goes on is the last to be taken: computing would wait for that copy though other chunks are free.
// engine_former.cpp says where addresses lead meanwhile.

#include <algorithm>
#include <utility>

#include "engine/engine.h"

namespace vt {

namespace {
constexpr unsigned kLaneBits = 8;

std::uint64_t pack(Ticket ticket) { return ticket.number << kLaneBits | static_cast<std::uint64_t>(ticket.lane); }
Ticket unpack(std::uint64_t packed) {
  if (packed == 0) return {};
  return {static_cast<Ticket::Lane>(packed & ((1u << kLaneBits) - 1)), packed >> kLaneBits};
}
}  // namespace

Engine::Lane Engine::stream(void* native) {
  Lock lock(mutex_);
  return drained_ ? Lane::none : order_.adopt(native);
}

void Engine::come_after(Lane later, Ticket earlier) {
  Lock lock(mutex_);
  order_.after(later, earlier);
}

void Engine::used_on(Lane stream, Range& range) noexcept {
  if (stream == Lane::none) return;
  const std::uint64_t now = pack(order_.now(stream));
  std::uint64_t before = range.used.load();
  while (before == 0 || unpack(before).lane == stream) {
    if (before >= now || range.used.compare_exchange_weak(before, now)) return;  // never backwards
  }
  Lock lock(mutex_);
  note_use_on(stream, range);
}

// The same for any stream: if another one used it last, that is not forgotten.
void Engine::note_use_on(Lane stream, Range& range) {
  if (stream == Lane::none) return;
  const Ticket now = order_.now(stream);
  const Ticket before = unpack(range.used.exchange(pack(now)));
  if (before.lane != stream || before.number > now.number) range.others.add(before);
}

void Engine::start_timing() {
  Lock lock(mutex_);
  if (!drained_) order_.stopwatch().start();
}

void Engine::row_begins(Lane stream) {
  Lock lock(mutex_);
  if (!drained_) order_.stopwatch().row(stream);
}

std::vector<std::uint64_t> Engine::row_times() {
  Lock lock(mutex_);
  if (drained_) return {};
  order_.stopwatch().stop();
  order_.wait(order_.streams());
  return order_.stopwatch().read();
}

void Engine::record_stream(const void* address, Lane stream) {
  Lock lock(mutex_);
  Range* range = find(address);
  if (range == nullptr || range->life != Life::live) return;
  auto& recorded = range->recorded;
  if (std::find(recorded.begin(), recorded.end(), stream) == recorded.end()) recorded.push_back(stream);
}

Fence Engine::uses_of(const Range& range) const {
  Fence fence = range.others;
  fence.add(unpack(range.used.load()));
  fence.add({Lane::in, range.ready.load()});
  for (const Lane stream : range.recorded) fence.add(order_.now(stream));  // until it is freed, whatever they were asked for
  return fence;
}

Fence Engine::touched_by(const Range& range) const {
  Fence fence = uses_of(range);
  for (std::uint32_t i = 0; i < range.chunks; ++i) fence.add({Lane::out, range.parts[i].gone});
  return fence;
}

void Engine::start_in_order(Range& range, Lane stream) {
  order_.after(stream, uses_of(range));  // of the tensor that had its addresses before
  range.home = stream;
  range.others.clear();
  range.recorded.clear();
  range.seen.store(false);
  range.used.store(pack(order_.now(stream)));
}

// --- room ------------------------------------------------------------------------------------------------------------

// Never waits: a chunk is free as soon as its leaving is asked for. nothing_leaves when all is pinned by operations that are being asked
// for now. `range`, if any: whose vTensor it is for, which returns.
Status Engine::take_in_order(const Range* range, std::uint32_t index, std::size_t want, ChunkId* chunk) {
  for (;;) {
    if (range != nullptr && take_former(*range, index, true, chunk)) return kOk;
    Status status = take_free(range != nullptr ? ChunkPool::Take::oldest : ChunkPool::Take::newest, chunk);
    if (status.code != Code::out_of_budget && status.code != Code::refused) return status;
    status = evict_some(want);
    if (!status.ok()) return status;
  }
}

void Engine::settle_leaving() {
  if (pool_.leaving() > 0) pool_.settle([this](ChunkId chunk) { return order_.passed(chunk_after_[chunk]); });
}

// A chunk that was taken and not used. What it comes after still stands.
void Engine::give_back(ChunkId chunk) {
  ordered_ && !order_.passed(chunk_after_[chunk]) ? pool_.release_leaving(chunk) : pool_.release(chunk);
}

// Where the host's memory cannot be used in place: memory beyond the budget, for as long as it must.
Status Engine::overdraw(ChunkId* chunk) {
  const Status status = pool_.overdraw(chunk);
  if (!status.ok()) return {Code::nothing_leaves, status.call, status.error};
  meet(*chunk);
  ++counters_.oversize;
  return kOk;
}

// An absent vTensor comes back, beyond the budget if need be.
Status Engine::bring_beyond(Range& range, std::uint32_t index) {
  Status status;
  for (int attempt = 0; attempt < 2; ++attempt) {
    ChunkId chunk = kNone;
    status = take_free(ChunkPool::Take::oldest, &chunk);
    if (status.code == Code::out_of_budget || status.code == Code::refused) status = overdraw(&chunk);
    if (status.ok()) {
      status = arrive(range, index, chunk);
      if (status.ok()) return status;
      give_back(chunk);
    }
    ++counters_.failures;
  }
  return status;
}

// Gives back what is beyond the budget and free, and used by nothing any more.
void Engine::repay() {
  const std::vector<ChunkId> free = pool_.free_chunks();
  for (const ChunkId chunk : free) {
    if (pool_.overdrawn() == 0) return;
    if (!order_.passed(chunk_after_[chunk])) continue;
    for (const auto& range : records_) forget_former(*range, [chunk](const VTensor& part) { return part.mapped == chunk; });
    if (!pool_.repay(chunk).ok()) ++counters_.failures;
  }
}

// What an operation held beyond the budget leaves after it, for repay() to give back: the budget does not wait for tensors to be freed.
void Engine::restore_budget() {
  while (!detached_ && pool_.overdrawn() > pool_.free()) {
    if (!give_up_cached() && !evict_some(pool_.overdrawn() - pool_.free()).ok()) return;
  }
}

// --- moves -----------------------------------------------------------------------------------------------------------

Status Engine::leave_in_order(Range& range, std::uint32_t index) {
  VTensor& part = range.parts[index];
  Fence after = uses_of(range);
  const bool clean = part.clean();
  if (clean) {
    order_.after(Lane::out, after);
    part.gone = order_.end_of(Lane::out).number;
    range.clean.fetch_sub(1);
    ++counters_.discards;
  } else {
    SlotId slot = kNone;
    Status status = acquire_slot(&slot);
    if (!status.ok()) return status;
    order_.after(Lane::out, after);
    if (slot < slot_after_.size()) order_.after(Lane::out, slot_after_[slot]);
    Ticket copy;
    status = copies_.start_in_order(Lane::out, part.chunk, store_->place(slot), bytes_in(range, index), &copy);
    if (!status.ok()) {
      store_->release(slot);
      return status;
    }
    part.slot = slot;
    part.gone = copy.number;
    after.clear();
    after.add(copy);
    ++counters_.evictions;
  }
  chunk_after_[part.chunk] = std::move(after);
  take_away(range, index, !clean);
  if (clean) {
    enter(range, index, Event::discard);
  } else {
    enter(range, index, Event::evict);
    enter(range, index, Event::left);
  }
  return kOk;
}

// What was used in the host's memory is not any more. The rare case, so a thread stands until nothing uses it.
Status Engine::withdraw_in_order(Range& range, std::uint32_t index) {
  Fence uses = uses_of(range);
  if (!range.seen.load()) uses.add(order_.now(range.home));  // nobody told how it was used so far
  order_.wait(uses);
  const Status status = unmap_borrowed(range, index);
  if (status.ok()) enter(range, index, Event::withdraw);
  return status;
}

Status Engine::arrive_in_order(Range& range, std::uint32_t index, ChunkId chunk) {
  VTensor& part = range.parts[index];
  Status status = part.state == State::borrowed ? withdraw_in_order(range, index) : kOk;
  if (status.ok()) status = lead_to(range, index, {&chunk, 1});
  if (!status.ok()) return status;
  order_.after(Lane::in, chunk_after_[chunk]);
  Ticket copy;
  status = copies_.start_in_order(Lane::in, chunk, place_of(part.slot), bytes_in(range, index), &copy);
  if (!status.ok()) return status;
  assign(part, chunk);
  range.ready.store(copy.number);
  enter(range, index, Event::fetch);
  if (part.write_wanted || range.exported) {
    release_slot(range, part);
  } else {
    range.clean.fetch_add(1);
  }
  part.write_wanted = part.planned = false;
  part.failures = 0;
  enter(range, index, Event::arrived);
  note_use();
  return kOk;
}

// The next owner of its slot writes after this one wrote and was read; and after those before it, as one that lay elsewhere (in_place.h)
// did not wait for them.
void Engine::fence_slot(const Range& range, const VTensor& part) {
  if (slot_after_.size() <= part.slot) slot_after_.resize(part.slot + 1);
  Fence& fence = slot_after_[part.slot];
  fence.add({Lane::out, part.gone});
  fence.add({Lane::in, range.ready.load()});
}

// --- ends ------------------------------------------------------------------------------------------------------------

void Engine::reap_in_order() {
  for (const Lane lane : {Lane::out, Lane::in}) {
    while (const auto job = copies_.collect(lane)) {
      if (job->state != CopyState::done) fatal("the device failed a copy: " + describe({Code::failed, "copy", job->error}));
    }
  }
  settle_leaving();
  if (pool_.overdrawn() > 0) repay();
}

void Engine::quiesce(Lock& lock) {
  order_.wait(order_.everything());
  settle(lock);
  sweep_limbo();
  for (Range* range : limbo_) end_borrowing(*range);  // pinned by operations that freed their arguments
  for (const auto& range : records_) forget_former(*range, [](const VTensor& part) { return part.mapped != part.chunk; });
}

// Everything in the host store comes back, beyond the budget if need be; if the device has no room, it can be used where it is.
void Engine::bring_all(Lock& lock) {
  for (const auto& range : records_) {
    if (range->life != Life::live) continue;
    for (std::uint32_t i = 0; i < range->chunks; ++i) {
      VTensor& part = range->parts[i];
      if (part.clean()) drop_slot(*range, i);  // nothing leaves any more
      if (part.state != State::absent && (part.state != State::borrowed || range->exported || range->pinned())) continue;
      part.write_wanted = true;
      const Status status = bring_beyond(*range, i);
      if (part.state == State::absent && !borrow(*range, i).ok()) {
        throw OutOfMemory("cannot stop managing memory: " + describe(status) + " while " +
                          format_bytes(counters_.absent_bytes.current) +
                          " of live tensors wait in the host store. Free some of them first. Nothing was lost.");
      }
    }
  }
  order_.wait(order_.everything());
  settle(lock);
}

// Whoever has the address may read it at any time on any stream: it stays where it is, and its data is there now.
void Engine::export_in_order(Lock& lock, Range& range) {
  const Use use{&range, 0, range.chunks, true, false};
  range.exported = true;
  pin_parts(use);
  fetch(lock, {&use, 1}, {"an address given away"});
  unpin_parts(use);
  Fence brought;
  brought.add({Lane::in, range.ready.load()});
  order_.wait(brought);
}

}  // namespace vt
