#include "engine/lending.h"

#include <algorithm>

namespace vt {

bool Lending::possible(const Range& range) const {
  return range.life == Life::live && !range.exported && !range.fixed && !range.pinned() && moves_.may_leave(range);
}

bool Lending::lend(const void* address, const void* memory, Bytes bytes) {
  if (closed_) return false;
  Call call(mutex_, ground_);
  if (ground_.detached) return false;  // nobody would bring it back before an operation
  Range* const range = ranges_.find_live(address);
  if (range == nullptr || range->base != reinterpret_cast<Address>(address) || range->bytes != bytes) return false;
  pins_.forget(*range);
  const std::uint64_t serial = range->serial;
  if (range->known.load()) remake_.lose_sight(call.lock, *range);
  if (!come_to_rest(call.lock, *range, serial)) return false;
  range->missing.fetch_add(1);  // for as long as this takes: nobody pins it without the lock
  const bool pinned = range->pins.load() != 0;
  for (std::uint32_t i = 0; i < range->chunks && !pinned; ++i) {
    VTensor& part = range->parts[i];
    if (part.state == State::borrowed) ground_.must("unmapping a lent tensor", [&] { return slots_.withdraw(*range, i); });
    const bool resident = part.state == State::resident;
    range->clean.fetch_add(resident && part.slot == kNone);
    if (part.slot != kNone) slots_.release(*range, part);
    part.slot = store_.lend(static_cast<const char*>(memory) + ground_.bytes_of(i));
    if (!resident) continue;
    range->missing.fetch_add(1);
    ground_.must("unmapping a lent tensor", [&] { return moves_.leave(*range, i); });
  }
  range->missing.fetch_sub(1);
  return !pinned;
}

// No copy of it is under way. False if it died meanwhile, or somebody uses it.
bool Lending::come_to_rest(Lock& lock, Range& range, std::uint64_t serial) {
  for (;;) {
    if (range.serial != serial || !possible(range)) return false;
    VTensor* const parts = &range.parts[0];
    VTensor* const end = parts + range.chunks;
    for (VTensor* part = parts; part != end; ++part) {
      if (part->state == State::leaving) moves_.stay(range, static_cast<std::uint32_t>(part - parts));
    }
    const VTensor* arriving = std::find_if(parts, end, [](const VTensor& part) { return part.state == State::arriving; });
    if (arriving == end) return true;
    moves_.wait_for(lock, arriving->ticket, false);
    moves_.reap();
  }
}

bool Lending::lent(const void* address, const void* memory, Bytes bytes) {
  if (closed_) return false;
  Call call(mutex_, ground_);
  const Range* range = ranges_.find_live(address);
  if (range == nullptr) return false;
  const VTensor* const parts = &range->parts[0];
  return std::all_of(parts, parts + range->chunks, [&](const VTensor& part) { return lies_in(part, memory, bytes); });
}

void Lending::take_back(const void* memory, Bytes bytes) {
  if (closed_) return;
  Call call(mutex_, ground_);
  for (Range* const range : ranges_.living()) {
    const std::uint64_t serial = range->serial;
    const auto lent = [&](std::uint32_t i) {
      return is_still(*range, serial) && lies_in(range->parts[i], memory, bytes);
    };
    for (std::uint32_t i = 0; i < range->chunks; ++i) {
      if (!lent(i)) continue;
      const Use use{range, i, i + 1, true, false};  // a use that writes gives the lent slot up
      pins_.pin(use);
      uses_.fetch(call.lock, {&use, 1}, "memory taken back");
      pins_.unpin(use);
      if (lent(i)) {
        throw OutOfMemory("vtensor: there is no room for " + format_bytes(ground_.bytes_in(*range, i)) +
                          " of a tensor that lies in memory that is taken back");
      }
    }
  }
  moves_.settle(call.lock);  // copies that read it
}

bool Lending::lies_in(const VTensor& part, const void* memory, Bytes bytes) const {
  if (!Lent::holds(part.slot)) return false;
  const auto at = reinterpret_cast<Address>(store_.place(part.slot).memory), from = reinterpret_cast<Address>(memory);
  return from <= at && at < from + bytes;
}

}  // namespace vt
