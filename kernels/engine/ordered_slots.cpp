#include "engine/ordered_slots.h"

#include <algorithm>

namespace vt {

Status OrderedSlots::prepare(Range& range, std::uint32_t index) {
  VTensor& part = range.parts[index];
  Fence left;
  left.add({Lane::out, part.gone});
  order_.wait(left);
  Status status = mappings_.unmap(range, index, index + 1);
  if (!status.ok() || in_place_.has(part.slot)) return status;
  const bool own = store_.writable(part.slot);  // else it is lent: it needs one that can be written
  SlotId slot = part.slot;
  if (!own) status = acquire(&slot, true);
  if (!status.ok()) return status;
  status = in_place_.take(slot);
  if (status.ok()) {
    status = write_copy(store_.place(part.slot), in_place_.place(slot), ground_.bytes_in(range, index));
    if (!status.ok()) in_place_.give_back(slot, {});
  }
  if (own) return status;
  if (!status.ok()) {
    give_back(slot);
    return status;
  }
  release(range, part);
  part.slot = slot;
  return kOk;
}

Status OrderedSlots::prepare_new(Range& range, std::uint32_t index, SlotId slot) {
  const Status status = in_place_.take(slot);
  return status.ok() ? mappings_.unmap(range, index, index + 1) : status;
}

void OrderedSlots::undo_prepare_new(SlotId slot) {
  if (in_place_.has(slot)) in_place_.give_back(slot, {});
}

Status OrderedSlots::withdraw(Range& range, std::uint32_t index) {
  Fence uses = fences_.uses_of(range);
  if (!range.seen.load()) uses.add(order_.now(range.home));  // nobody told how it was used so far
  order_.wait(uses);
  return Slots::withdraw(range, index);
}

// Memory of the host that others may use goes on being used: who has the address of an exported tensor, or an operation that has
// pinned it and whose work is not yet asked for.
bool OrderedSlots::stays_borrowed(const Range& range, std::uint32_t index, std::span<const Use> uses) const {
  if (range.parts[index].state != State::borrowed) return false;
  const auto own = std::count_if(uses.begin(), uses.end(), [&](const Use& use) {
    return use.range == &range && use.first <= index && index < use.last;
  });
  return range.exported || range.pins.load() != 0 || range.parts[index].pins != own;
}

void OrderedSlots::before_release(const Range& range, const VTensor& part) {
  fences_.add_to_slot(range, part);
  if (in_place_.has(part.slot)) in_place_.give_back(part.slot, fences_.of_slot(part.slot));
}

}  // namespace vt
