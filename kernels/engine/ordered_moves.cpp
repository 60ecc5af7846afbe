#include "engine/ordered_moves.h"

#include <utility>

namespace vt {

namespace {
constexpr std::uint32_t kSeldom = 16;
}  // namespace

Status OrderedMoves::leave(Range& range, std::uint32_t index) {
  VTensor& part = range.parts[index];
  Fence after = fences_.uses_of(range);
  const bool clean = part.clean();
  if (clean) {
    order_.after(Lane::out, after);
    part.gone = order_.end_of(Lane::out).number;
    range.clean.fetch_sub(1);
    ++ground_.counters.discards;
  } else {
    SlotId slot = kNone;
    const SlotId before = index > 0 ? range.parts[index - 1].slot : kNone;
    Status status = slots_.acquire(&slot, false, before);
    if (!status.ok()) return status;
    order_.after(Lane::out, after);
    order_.after(Lane::out, fences_.of_slot(slot));
    Ticket copy;
    status = copies_.start_in_order(Lane::out, ground_.address_of(range, index), part.chunk, slots_.place(slot),
                                    ground_.bytes_in(range, index), &copy);
    if (!status.ok()) {
      slots_.give_back(slot);
      return status;
    }
    order_.copied(copy);
    part.slot = slot;
    part.gone = copy.number;
    after.clear();
    after.add(copy);
    ++ground_.counters.evictions;
  }
  fences_.set_chunk(part.chunk, std::move(after));
  chunks_.leave(range, index, !clean);
  if (clean) {
    roster_.enter(range, index, Event::discard);
  } else {
    roster_.enter(range, index, Event::evict);
    roster_.enter(range, index, Event::left);
  }
  if (ground_.config.strict) close(range, index);
  return kOk;
}

void OrderedMoves::close(Range& range, std::uint32_t index) {
  const ChunkId chunk = range.parts[index].mapped;
  if (chunk == kNone) return;
  order_.wait(fences_.of_chunk(chunk));
  ground_.must("unmapping what left", [&] { return mappings_.unmap(range, index, index + 1); });
}

Status OrderedMoves::arrive(Range& range, std::uint32_t index, ChunkId chunk) {
  VTensor& part = range.parts[index];
  Status status = part.state == State::borrowed ? slots_.withdraw(range, index) : kOk;
  if (status.ok()) status = mappings_.lead_to(range, index, {&chunk, 1});
  if (!status.ok()) return status;
  order_.after(Lane::in, fences_.of_chunk(chunk));
  Ticket copy;
  status = copies_.start_in_order(Lane::in, ground_.address_of(range, index), chunk, slots_.place(part.slot),
                                  ground_.bytes_in(range, index), &copy);
  if (!status.ok()) return status;
  order_.copied(copy);
  chunks_.assign(part, chunk);
  range.ready.store(copy.number);
  roster_.enter(range, index, Event::fetch);
  if (part.write_wanted || range.exported) {
    slots_.release(range, part);
  } else {
    range.clean.fetch_add(1);
  }
  part.write_wanted = part.planned = false;
  part.failures = 0;
  roster_.enter(range, index, Event::arrived);
  chunks_.note_use();
  return kOk;
}

Status OrderedMoves::drop(Range& range, std::uint32_t index) {
  VTensor& part = range.parts[index];
  if (part.state == State::borrowed) {
    const Status status = slots_.withdraw(range, index);
    if (!status.ok()) return status;
  }
  const bool clean = part.clean();
  if (part.state == State::resident) {
    Fence after = fences_.uses_of(range);
    order_.after(Lane::out, after);
    part.gone = order_.end_of(Lane::out).number;
    fences_.set_chunk(part.chunk, std::move(after));
    chunks_.leave(range, index);
  }
  range.clean.fetch_sub(clean);
  if (part.slot != kNone) slots_.release(range, part);
  roster_.enter(range, index, Event::drop);
  if (ground_.config.strict) close(range, index);
  return kOk;
}

// Both addresses lead to the chunk then: that of `from` as to a former one. Whoever uses `to` comes after what was asked of
// `from`.
void OrderedMoves::hand_over(Range& from, Range& to) {
  std::vector<ChunkId> chunks(to.chunks, kNone);
  for (std::uint32_t i = 0; i < to.chunks; ++i) {
    if (to.parts[i].state != State::dropped) continue;
    if (from.parts[i].state == State::resident) {
      if (from.parts[i].clean()) slots_.make_dirty(from, i);
      chunks[i] = from.parts[i].chunk;
      continue;
    }
    ground_.must("unmapping what was recomputed", [&] { return slots_.withdraw(from, i); });
    to.parts[i].slot = std::exchange(from.parts[i].slot, kNone);
    roster_.enter(from, i, Event::give);
    roster_.enter(to, i, Event::made_in_host);
  }
  ground_.must("mapping what was recomputed", [&] { return mappings_.lead_to(to, 0, chunks); });
  for (std::uint32_t i = 0; i < to.chunks; ++i) {
    if (chunks[i] == kNone) continue;
    chunks_.assign(to.parts[i], std::exchange(from.parts[i].chunk, kNone));
    from.missing.fetch_add(1);
    roster_.enter(from, i, Event::give);
    roster_.enter(to, i, Event::made);
  }
  fences_.made(from, to);
  to.maker = &from;
}

// Nobody stands for what has ended, and asking whether it has takes as long as asking for a copy: all that it tells is which
// chunks are free, and which will be.
void OrderedMoves::glance() {
  if (++glances_ % kSeldom == 0 || pool_.overdrawn() > 0) reap();
}

void OrderedMoves::reap() {
  for (const Lane lane : {Lane::out, Lane::in}) {
    while (const auto job = copies_.collect(lane)) {
      if (job->state != CopyState::done) fatal("the device failed a copy: " + describe({Code::failed, "copy", job->error}));
      ground_.step();
    }
  }
  mappings_.settle_leaving();
  if (pool_.overdrawn() > 0) repay();
}

// Gives back what is beyond the budget and free, and used by nothing any more.
void OrderedMoves::repay() {
  const std::vector<ChunkId> free(pool_.free_chunks().begin(), pool_.free_chunks().end());
  for (const ChunkId chunk : free) {
    if (pool_.overdrawn() == 0) return;
    if (!order_.passed(fences_.of_chunk(chunk))) continue;
    for (const auto& range : ranges_.records()) mappings_.forget_chunk(*range, chunk);
    if (!pool_.repay(chunk).ok()) ++ground_.counters.failures;
  }
}

void OrderedMoves::quiesce(Lock& lock) {
  order_.wait(order_.everything());
  settle(lock);
}

// It stays where it is, and its data is there now, also what was recomputed or read to make others, of which the program knows
// nothing. (Not what its stream came after when it began: who uses a new tensor by its address mostly does so on that stream.)
void OrderedMoves::give_away(Lock&, Range& range, const std::function<void()>& bring) {
  range.exported = true;
  bring();
  Fence brought;
  brought.add({Lane::in, range.ready.load()});
  brought.add(Fences::maker(range));
  order_.wait(brought);
}

// Everything in the host store comes back; if the device has no room, it can be used where it is.
void OrderedMoves::bring_all(Lock& lock, const RangeTable& ranges,
                             const std::function<Status(Range&, std::uint32_t)>& beyond) {
  for (const auto& range : ranges.records()) {
    if (range->life != Life::live) continue;
    for (std::uint32_t i = 0; i < range->chunks; ++i) {
      VTensor& part = range->parts[i];
      if (part.clean()) slots_.make_dirty(*range, i);  // nothing leaves any more
      if (part.state != State::absent && (part.state != State::borrowed || range->exported || range->pinned())) continue;
      part.write_wanted = true;
      const Status status = beyond(*range, i);
      if (part.state == State::absent && !slots_.borrow(*range, i).ok()) {
        throw OutOfMemory("cannot stop managing memory: " + describe(status) + " while " +
                          format_bytes(ground_.counters.absent_bytes.current) +
                          " of live tensors wait in the host store. Free some of them first. Nothing was lost.");
      }
    }
  }
  quiesce(lock);
}

}  // namespace vt
