#include "engine/slots.h"

#include "engine/messages.h"

namespace vt {

Status Slots::acquire(SlotId* slot, bool in_operation, SlotId before) {
  Status status = store_.acquire(slot, before);
  if (status.code == Code::host_full) {
    sweep_();
    status = store_.acquire(slot);
  }
  if (status.code == Code::host_full) {
    for (Range* range : roster_.ranges()) {
      for (std::uint32_t i = 0; i < range->chunks && range->clean.load() > 0; ++i) {
        if (range->parts[i].clean()) make_dirty(*range, i);
      }
      status = store_.acquire(slot);
      if (status.ok()) break;
    }
  }
  if (status.code == Code::host_full && (in_operation || ground_.remaking > 0)) {
    status = store_.acquire_beyond(slot);
    if (status.ok()) warn_host_full(ground_.bytes_of(store_.capacity()));
  }
  peak_ = std::max(peak_, store_.held());
  return status;
}

void Slots::release(const Range& range, VTensor& part) {
  before_release(range, part);
  store_.release(part.slot);
  part.slot = kNone;
}

void Slots::make_dirty(Range& range, std::uint32_t index) {
  allow_writing(range, index);
  release(range, range.parts[index]);
  range.clean.fetch_sub(1);
}

Status Slots::borrow(Range& range, std::uint32_t index) {
  Status status = prepare(range, index);
  if (status.ok()) status = ground_.driver.map_host(ground_.address_of(range, index), place(range.parts[index].slot));
  if (status.ok()) roster_.enter(range, index, Event::borrow);
  return status;
}

Status Slots::begin_in_place(Range& range, std::uint32_t index) {
  SlotId slot = kNone;
  Status status = acquire(&slot);
  if (!status.ok()) return status;
  status = prepare_new(range, index, slot);
  if (status.ok()) status = ground_.driver.map_host(ground_.address_of(range, index), place(slot));
  if (!status.ok()) {
    undo_prepare_new(slot);
    store_.release(slot);
    return status;
  }
  range.parts[index].slot = slot;
  range.parts[index].state = State::borrowed;
  return kOk;
}

Status Slots::withdraw(Range& range, std::uint32_t index) {
  const Status status = ground_.driver.unmap_host(ground_.address_of(range, index));
  if (status.ok()) roster_.enter(range, index, Event::withdraw);
  return status;
}

void Slots::end_borrowing(Range& range) {
  for (std::uint32_t i = 0; i < range.chunks; ++i) {
    VTensor& part = range.parts[i];
    if (part.state != State::borrowed) continue;
    ground_.must("unmapping a freed tensor", [&] { return ground_.driver.unmap_host(ground_.address_of(range, i)); });
    release(range, part);
    part.state = State::resident;  // of a freed tensor, with neither chunk nor slot: nobody looks at it any more
  }
}

}  // namespace vt
