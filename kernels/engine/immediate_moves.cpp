#include "engine/immediate_moves.h"

#include <utility>

namespace vt {

// --- out ------------------------------------------------------------------------------------------------------

Status ImmediateMoves::map(const Range& range, std::uint32_t index) {
  const VTensor& part = range.parts[index];
  return ground_.driver.map(ground_.address_of(range, index), part.chunk, part.slot != kNone ? Access::read : Access::write);
}

void ImmediateMoves::map_back(const Range& range, std::uint32_t index) {
  ground_.must("mapping a chunk back", [&] { return map(range, index); });
}

void ImmediateMoves::keep_mapped(Range& range, std::uint32_t index) {
  if (range.exported && !slots_.borrow(range, index).ok()) ++ground_.counters.failures;
}

Status ImmediateMoves::leave(Range& range, std::uint32_t index) {
  return range.parts[index].clean() ? leave_for_free(range, index) : leave_by_copy(range, index);
}

Status ImmediateMoves::leave_for_free(Range& range, std::uint32_t index) {
  const Status status = ground_.driver.unmap(ground_.address_of(range, index));
  if (!status.ok()) return status;
  chunks_.leave(range, index);
  range.clean.fetch_sub(1);
  ++ground_.counters.discards;
  roster_.enter(range, index, Event::discard);
  return kOk;
}

Status ImmediateMoves::leave_by_copy(Range& range, std::uint32_t index) {
  SlotId slot = kNone;
  Status status = slots_.acquire(&slot);
  if (!status.ok()) return status;
  status = ground_.driver.unmap(ground_.address_of(range, index));
  if (status.ok()) {
    status = copies_.start(Lane::out, range, index, slots_.place(slot), ground_.bytes_in(range, index));
    if (!status.ok()) map_back(range, index);
  }
  if (!status.ok()) {
    slots_.give_back(slot);
    return status;
  }
  range.parts[index].slot = slot;
  exported_leaving_ += range.exported;
  roster_.enter(range, index, Event::evict);
  return kOk;
}

void ImmediateMoves::after_copy_out(const CopyJob& job) {
  Range& range = *job.range;
  VTensor& part = range.parts[job.index];
  part.ticket = {};
  exported_leaving_ -= range.exported;
  if (job.state != CopyState::done) {
    last_failure_ = {Code::failed, "copy to the host store", job.error};
    ++ground_.counters.failures;
    ++failed_;
    slots_.release(range, part);
    map_back(range, job.index);
    roster_.enter(range, job.index, Event::stay);
    return;
  }
  ground_.step();
  ++ground_.counters.evictions;
  chunks_.leave(range, job.index);
  roster_.enter(range, job.index, Event::left);
  keep_mapped(range, job.index);
}

void ImmediateMoves::stay(Range& range, std::uint32_t index) {
  VTensor& part = range.parts[index];
  exported_leaving_ -= range.exported;
  const bool copied = copies_.cancel(part) == CopyState::done;
  if (copied && !range.exported) {
    range.clean.fetch_add(1);
  } else {
    slots_.release(range, part);
  }
  map_back(range, index);
  ++ground_.counters.cancels;
  roster_.enter(range, index, Event::stay);
}

void ImmediateMoves::cancel(Range& range, std::uint32_t index) {
  VTensor& part = range.parts[index];
  exported_leaving_ -= range.exported && part.state == State::leaving;
  copies_.cancel(part);
}

// --- in -------------------------------------------------------------------------------------------------------

Status ImmediateMoves::arrive(Range& range, std::uint32_t index, ChunkId chunk) {
  VTensor& part = range.parts[index];
  if (part.state == State::borrowed) {
    const Status status = slots_.withdraw(range, index);
    if (!status.ok()) return status;
  }
  chunks_.assign(part, chunk);
  const Status status = copies_.start(Lane::in, range, index, slots_.place(part.slot), ground_.bytes_in(range, index));
  if (!status.ok()) {
    part.chunk = kNone;
    keep_mapped(range, index);
    return status;
  }
  roster_.enter(range, index, Event::fetch);
  chunks_.note_use();
  return kOk;
}

void ImmediateMoves::after_copy_in(const CopyJob& job) {
  Range& range = *job.range;
  VTensor& part = range.parts[job.index];
  part.ticket = {};
  part.planned = false;
  Status status = job.state == CopyState::done ? kOk : Status{Code::failed, "copy from the host store", job.error};
  if (status.ok()) {
    const bool clean = !part.write_wanted && !range.exported;
    status = ground_.driver.map(ground_.address_of(range, job.index), part.chunk, clean ? Access::read : Access::write);
    if (status.ok()) {
      ground_.step();
      part.write_wanted = false;
      part.failures = 0;
      if (clean) {
        range.clean.fetch_add(1);
      } else {
        slots_.release(range, part);
      }
      roster_.enter(range, job.index, Event::arrived);
      return;
    }
  }
  last_failure_ = status;
  ++ground_.counters.failures;
  ++part.failures;
  pool_.release(part.chunk);
  part.chunk = kNone;
  roster_.enter(range, job.index, Event::turn_back);
  keep_mapped(range, job.index);
}

// --- without a copy -------------------------------------------------------------------------------------------

Status ImmediateMoves::drop(Range& range, std::uint32_t index) {
  VTensor& part = range.parts[index];
  if (part.state == State::borrowed) {
    const Status status = slots_.withdraw(range, index);
    if (!status.ok()) return status;
  }
  if (part.state == State::resident) {
    const Status status = ground_.driver.unmap(ground_.address_of(range, index));
    if (!status.ok()) return status;
    range.clean.fetch_sub(part.clean());
    chunks_.leave(range, index);
  }
  if (part.slot != kNone) slots_.release(range, part);
  roster_.enter(range, index, Event::drop);
  return kOk;
}

void ImmediateMoves::hand_over(Range& from, Range& to) {
  for (std::uint32_t i = 0; i < to.chunks; ++i) {
    VTensor& made = from.parts[i];
    VTensor& part = to.parts[i];
    if (part.state != State::dropped) continue;
    if (made.state == State::borrowed) {
      ground_.must("unmapping what was recomputed", [&] { return slots_.withdraw(from, i); });
      part.slot = std::exchange(made.slot, kNone);
      roster_.enter(from, i, Event::give);
      roster_.enter(to, i, Event::made_in_host);
      continue;
    }
    if (made.clean()) slots_.make_dirty(from, i);
    ground_.must("unmapping what was recomputed", [&] { return ground_.driver.unmap(ground_.address_of(from, i), Door::ajar); });
    chunks_.assign(part, std::exchange(made.chunk, kNone));
    from.missing.fetch_add(1);
    roster_.enter(from, i, Event::give);
    map_back(to, i);
    roster_.enter(to, i, Event::made);
  }
}

// --- waiting --------------------------------------------------------------------------------------------------

void ImmediateMoves::reap() {
  if (copies_.idle()) return;  // as at most allocations
  while (const auto job = copies_.collect(Lane::out)) after_copy_out(*job);
  while (const auto job = copies_.collect(Lane::in)) after_copy_in(*job);
}

// Whoever holds the address of what is leaving may read it as soon as the caller returns.
void ImmediateMoves::catch_up(Lock& lock) {
  reap();
  while (exported_leaving_ > 0) {
    wait_for(lock, *copies_.oldest(Lane::out));
    reap();
  }
}

// The copy out that ends first; if there is none because nothing leaves, one in: what a plan brings back early holds a chunk, and
// can leave again once it is there.
bool ImmediateMoves::wait_for_room(Lock& lock, const Status& why) {
  auto ticket = copies_.oldest(Lane::out);
  if (!ticket && why.code == Code::nothing_leaves) ticket = copies_.oldest(Lane::in);
  if (ticket) wait_for(lock, *ticket);
  return ticket.has_value();
}

// --- addresses in other hands ---------------------------------------------------------------------------------

// Exported data may move; wherever it waits, its address leads there.
void ImmediateMoves::give_away(Lock& lock, Range& range, const std::function<void()>&) {
  for (std::uint32_t i = 0; i < range.chunks; ++i) {
    VTensor& part = range.parts[i];
    if (part.state == State::leaving) stay(range, i);
    if (part.clean()) slots_.make_dirty(range, i);  // also what stayed when it had been copied
  }
  range.exported = true;
  for (std::uint32_t i = 0; i < range.chunks; ++i) {
    VTensor& part = range.parts[i];
    while (part.state == State::arriving) {
      wait_for(lock, part.ticket);
      reap();
    }
    if (part.state == State::absent) keep_mapped(range, i);
  }
}

// What is absent is used where it is. If that fails the vTensor stays absent, and the fault handler brings it when it is touched.
void ImmediateMoves::bring_all(Lock& lock, const RangeTable& ranges, const std::function<Status(Range&, std::uint32_t)>&) {
  settle(lock);
  ranges.each_live_part(State::resident, [this](Range& range, std::uint32_t i) {
    if (range.parts[i].clean()) slots_.make_dirty(range, i);  // nothing leaves any more, and system calls may write
  });
  ranges.each_live_part(State::absent, [this](Range& range, std::uint32_t i) {
    if (!slots_.borrow(range, i).ok()) ++ground_.counters.failures;
  });
}

}  // namespace vt
