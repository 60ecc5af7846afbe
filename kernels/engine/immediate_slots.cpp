#include "engine/immediate_slots.h"

namespace vt {

// What is fixed does not move; and nothing does that plans lack chunks for, as a slot is memory like any other.
bool ImmediateSlots::stays_borrowed(const Range& range, std::uint32_t index, std::span<const Use>) const {
  const bool lacking = ground_.shortfall.load(std::memory_order_relaxed) > 0;
  return (range.stays() || lacking) && range.parts[index].state == State::borrowed;
}

bool ImmediateSlots::end_borrowed(Range& range, std::uint32_t index) {
  ground_.must("unmapping a dead tensor", [&] { return ground_.driver.unmap_host(ground_.address_of(range, index)); });
  return true;
}

// A slot that a fork has frozen, or that is lent, must not be written: its bytes move to a fresh one.
Status ImmediateSlots::prepare(Range& range, std::uint32_t index) {
  VTensor& part = range.parts[index];
  if (store_.writable(part.slot)) return kOk;
  SlotId fresh = kNone;
  Status status = acquire(&fresh, true);
  if (!status.ok()) return status;
  status = write_copy(store_.place(part.slot), store_.place(fresh), ground_.bytes_in(range, index));
  store_.release(status.ok() ? part.slot : fresh);
  if (status.ok()) part.slot = fresh;
  return status;
}

void ImmediateSlots::allow_writing(Range& range, std::uint32_t index) {
  ground_.must("making a chunk writable",
               [&] { return ground_.driver.protect(ground_.address_of(range, index), Access::write); });
}

}  // namespace vt
