#include "engine/uses.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "engine/messages.h"

namespace vt {

namespace {
// A copy in that failed this often is not tried again for this use; the slot is used in place.
constexpr std::uint8_t kCopyAttempts = 2;
constexpr std::uint8_t kBorrowAttempts = 6;
// Chunks a fault brought in are kept from leaving for the next few faults.
constexpr std::size_t kGraces = 8;

bool is_away(State state) { return state == State::absent || state == State::borrowed; }
}  // namespace

void Uses::fetch(Lock& lock, std::span<const Use> uses, const char* operation, bool keep_graces) {
  Fetch fetch{uses, operation, keep_graces};
  if (!keep_graces) {
    for (const Use& use : uses) use.range->touches = 0;
  }
  supply_.begin();
  remake(lock, fetch);
  for (;;) {
    const Ticket last = fetch_all(lock, fetch);
    if (last.number == 0) break;
    moves_.wait_for(lock, last);
    moves_.reap();
  }
  // Not before: two whose copies go on failing would be tried again in turns, and no round would be without a copy.
  for (const Use& use : uses) {
    for (std::uint32_t i = use.first; i < use.last; ++i) {
      if (use.range->parts[i].state == State::borrowed) use.range->parts[i].failures = 0;
    }
  }
  if (fetch.in_place) warn_of(fetch, false);
  if (fetch.in_place || fetch.overdrawn) ++ground_.counters.oversize;  // once an operation, however many vTensors have no room
}

// What was dropped is recomputed first. It is pinned, so that it is not dropped any more.
void Uses::remake(Lock& lock, const Fetch& fetch) {
  std::vector<Range*> dropped;
  for (const Use& use : fetch.uses) {
    const VTensor* parts = &use.range->parts[0];
    const bool some =
        std::any_of(parts + use.first, parts + use.last, [](const VTensor& part) { return part.state == State::dropped; });
    if (some) dropped.push_back(use.range);
  }
  // Whoever touched memory past all operations stands in the middle of anything. What one operation of a backward pass misses,
  // the next ones miss the makings of, if no plan says otherwise.
  if (!dropped.empty()) remake_.bring(lock, dropped, fetch.keep_graces, ground_.config.leaving != Leaving::copy);
}

std::size_t Uses::missing(const Fetch& fetch) const {
  std::size_t want = 0;
  for (const Use& use : fetch.uses) {
    for (std::uint32_t i = use.first; i < use.last; ++i) {
      const State state = use.range->parts[i].state;
      want += state == State::absent || (state == State::borrowed && !slots_.stays_borrowed(*use.range, i, fetch.uses));
    }
  }
  return want;
}

// Returns the newest copy that must be waited for; a lane ends its copies in order, so that waiting for it waits for all.
Ticket Uses::fetch_all(Lock& lock, Fetch& fetch) {
  std::size_t want = missing(fetch);
  Ticket last;
  for (const Use& use : fetch.uses) {
    for (std::uint32_t i = use.first; i < use.last; ++i) {
      const VTensor& part = use.range->parts[i];
      const bool away = is_away(part.state);
      if (fetch_part(lock, use, i, std::max<std::size_t>(want, 1), fetch)) last = part.ticket;
      if (away && want > 0) --want;
    }
  }
  return last;
}

// Whether it is on its way; else it can be used.
bool Uses::fetch_part(Lock& lock, const Use& use, std::uint32_t index, std::size_t want, Fetch& fetch) {
  Range& range = *use.range;
  VTensor& part = range.parts[index];
  for (;;) {
    switch (part.state) {
      case State::resident:
        if (use.write && part.clean()) slots_.make_dirty(range, index);
        return false;
      case State::leaving:
        moves_.stay(range, index);
        continue;
      case State::arriving:
        ground_.counters.late_arrivals += part.planned;
        part.planned = false;
        part.write_wanted |= use.write;
        return true;
      case State::absent:
      case State::borrowed:
        break;
      case State::dropped:
      case State::given:
        fatal("a vTensor that is pinned was dropped");
    }
    const bool try_it = part.failures < kCopyAttempts && !fetch.full && !slots_.stays_borrowed(range, index, fetch.uses);
    if (try_it && bring(lock, use, index, want, fetch)) continue;
    if (!use_in_place(use, index, fetch)) return false;
  }
}

// True if its state has changed, or may have: look again.
bool Uses::bring(Lock& lock, const Use& use, std::uint32_t index, std::size_t want, Fetch& fetch) {
  VTensor& part = use.range->parts[index];
  ChunkId chunk = kNone;
  Status status = supply_.take(lock, {use.range, index, want, fetch.keep_graces}, &chunk);
  // The lock was let go of. Another thread may have brought it, or given it to a call (as torch.save does), and then it stays
  // mapped where it is: a system call would fail while its bytes are on their way.
  if (!is_away(part.state) || slots_.stays_borrowed(*use.range, index, fetch.uses)) {
    if (status.ok()) supply_.give_back(chunk);
    return true;
  }
  if (!status.ok()) {
    fetch.full = status.code == Code::nothing_leaves && !moves_.may_overdraw();
    fetch.host_full |= status.code == Code::host_full;
    return false;
  }
  part.write_wanted = use.write;
  status = moves_.arrive(*use.range, index, chunk);
  if (status.ok()) return true;
  supply_.give_back(chunk);
  ++part.failures;
  ++ground_.counters.failures;
  return true;
}

// True if its state has changed, or may: look again.
bool Uses::use_in_place(const Use& use, std::uint32_t index, Fetch& fetch) {
  Range& range = *use.range;
  VTensor& part = range.parts[index];
  const Status borrowed = part.state == State::absent ? slots_.borrow(range, index) : kOk;
  if (!borrowed.ok()) {
    if (moves_.may_overdraw()) {
      if (!std::exchange(fetch.overdrawn, true)) {
        fetch.lacking = lacking(fetch);
        warn_of(fetch, true);
      }
      part.write_wanted = use.write;
      const Status status = supply_.bring_beyond(range, index);
      if (status.ok()) return true;
      // The operation cannot be stopped any more, and would read what is not there.
      fatal(std::string("the device has no memory left for the arguments of ") +
            (fetch.operation != nullptr ? fetch.operation : "an operation") + ": " + describe(status));
    }
    ++ground_.counters.failures;
    if (++part.failures < kBorrowAttempts) return true;
    warn_unmapped(fetch.operation, borrowed);
    return false;  // nothing more can be done here; touching it will fault, and try again
  }
  if (!std::exchange(fetch.in_place, true)) fetch.lacking = lacking(fetch);
  return false;
}

std::size_t Uses::lacking(const Fetch& fetch) const {
  std::size_t count = 0;
  for (const Use& use : fetch.uses) {
    for (std::uint32_t i = use.first; i < use.last; ++i) count += is_away(use.range->parts[i].state);
  }
  return count;
}

void Uses::warn_of(const Fetch& fetch, bool overdrawn) const {
  std::size_t used = 0;
  for (const Use& use : fetch.uses) used += use.last - use.first;
  warn_oversize(fetch.operation, {.used = ground_.bytes_of(used),
                                  .lacking = ground_.bytes_of(fetch.lacking),
                                  .budget = ground_.bytes_of(pool_.capacity()),
                                  .host_full = fetch.host_full,
                                  .overdrawn = overdrawn,
                                  .copies = ground_.copies()});
}

FaultOutcome Uses::on_fault(Lock& lock, Address address) {
  Range* range = ranges_.find_live(reinterpret_cast<const void*>(address));
  if (range == nullptr) return FaultOutcome::foreign;
  const auto index = static_cast<std::uint32_t>((address - range->base) >> ground_.shift);
  VTensor& part = range->parts[index];
  if (part.clean()) {
    if (range->known.load()) remake_.lose_sight(lock, *range);
    if (part.clean()) slots_.make_dirty(*range, index);  // mapped for reading only, so this is a write
    return FaultOutcome::served;
  }
  if (part.state == State::resident || part.state == State::borrowed) return FaultOutcome::idle;
  ++ground_.counters.faults;
  const WaitsAlone alone;
  const std::size_t graces = std::min(kGraces, pool_.capacity() / 4);
  const bool in_place = graces == 0 || belongs_in_place(range->touches, range->chunks, supply_.has_room());
  // What cannot be written where it is would be copied; but one chunk serves no two.
  const bool may_stay = part.state == State::absent && (graces == 0 || slots_.store().writable(part.slot));
  if (in_place && may_stay && slots_.borrow(*range, index).ok()) return FaultOutcome::served;
  ++range->touches;
  const Use use{range, index, index + 1, false, false};
  pins_.pin(use);
  fetch(lock, {&use, 1}, "a read outside operations", true);
  pins_.keep(use, graces);
  if (part.state != State::absent) return FaultOutcome::served;
  // It could neither be brought nor borrowed. Others may give back what is lacking; if nobody does, the fault is a real error.
  ground_.let_go(lock, [] { std::this_thread::sleep_for(std::chrono::microseconds(100)); });
  return FaultOutcome::idle;
}

void Uses::give_away(Lock& lock, Range& range, Export how) {
  if (!range.exported) remake_.lose_sight(lock, range);  // lets go of the lock, and others may give it away meanwhile
  if (how == Export::for_a_call) {
    ++range.exported_for;
  } else {
    range.given_away = true;
  }
  if (!range.exported || range.missing.load() != 0) {
    try {
      moves_.give_away(lock, range, [&] {
        const Use use = all_parts(range, true);
        pins_.pin(use);
        fetch(lock, {&use, 1}, "an address given away");
        pins_.unpin(use);
      });
    } catch (...) {
      if (how == Export::for_a_call) end_call(range);
      throw;
    }
  }
  range.fixed |= how == Export::fixed;
}

void Uses::end_call(Range& range) {
  if (range.exported_for == 0 || --range.exported_for > 0) return;
  range.exported = range.given_away || ground_.detached;
  const bool stays = range.exported || range.pinned();
  for (std::uint32_t i = 0; i < range.chunks; ++i) {
    const VTensor& part = range.parts[i];
    if (part.state != State::borrowed || (stays && slots_.store().writable(part.slot))) continue;
    Status status = slots_.withdraw(range, i);
    if (status.ok() && stays) status = slots_.borrow(range, i);  // elsewhere: a fork froze where it was, and waited for the call
    ground_.counters.failures += !status.ok();
  }
}

}  // namespace vt
