// Engine: what a vTensor has in the host store, and using it in place. See engine.h and host_store.h.

#include <algorithm>

#include "engine/engine.h"

namespace vt {

Status Engine::borrow(Range& range, std::uint32_t index) {
  VTensor& part = range.parts[index];
  Status status = ordered_ ? move_in_place(range, index) : own_slot(part);
  if (status.ok()) status = driver_->map_host(address_of(range, index), place_of(part.slot));
  if (status.ok()) enter(range, index, Event::borrow);
  return status;
}

HostPlace Engine::place_of(SlotId slot) const { return in_place_.has(slot) ? in_place_.place(slot) : store_->place(slot); }

// An ordered device uses only some memory of the host in place (in_place.h). The rare case, so threads may stand.
Status Engine::move_in_place(Range& range, std::uint32_t index) {
  const VTensor& part = range.parts[index];
  Fence left;
  left.add({Lane::out, part.gone});
  order_.wait(left);
  Status status = unmap_formers(range, index, index + 1);
  if (!status.ok() || in_place_.has(part.slot)) return status;
  status = in_place_.take(part.slot);
  if (!status.ok()) return status;
  status = write_copy(store_->place(part.slot), in_place_.place(part.slot), bytes_in(range, index));
  if (!status.ok()) in_place_.give_back(part.slot, {});
  return status;
}

void Engine::end_borrowing(Range& range) {
  for (std::uint32_t i = 0; i < range.chunks; ++i) {
    VTensor& part = range.parts[i];
    if (part.state != State::borrowed) continue;
    must("unmapping a freed tensor", &Engine::unmap_borrowed, range, i);
    release_slot(range, part);
    part.state = State::resident;
  }
}

// A new vTensor begins its life in the host store. Pre: nothing uses its address.
Status Engine::born_in_place(Range& range, std::uint32_t index) {
  VTensor& part = range.parts[index];
  SlotId slot = kNone;
  Status status = acquire_slot(&slot);
  if (!status.ok()) return status;
  if (ordered_) status = in_place_.take(slot);
  if (status.ok() && ordered_) status = unmap_formers(range, index, index + 1);
  if (status.ok()) status = driver_->map_host(address_of(range, index), place_of(slot));
  if (!status.ok()) {
    if (in_place_.has(slot)) in_place_.give_back(slot, {});
    store_->release(slot);
    return status;
  }
  part.slot = slot;
  part.state = State::borrowed;
  return kOk;
}

Status Engine::own_slot(VTensor& part) {
  if (store_->writable(part.slot)) return kOk;
  SlotId fresh = kNone;
  Status status = acquire_slot(&fresh);
  if (!status.ok()) return status;
  status = write_copy(store_->place(part.slot), store_->place(fresh), chunk_bytes_);
  store_->release(status.ok() ? part.slot : fresh);
  if (status.ok()) part.slot = fresh;
  return status;
}

Status Engine::acquire_slot(SlotId* slot) {
  Status status = store_->acquire(slot);
  if (status.code == Code::host_full && ordered_) {
    sweep_limbo();  // what dead tensors have in place
    status = store_->acquire(slot);
  }
  if (status.code == Code::host_full) {
    // Clean vTensors keep a slot only to leave for free later: they give it up before anything fails.
    for (std::size_t i = 0; i < roster_.size() && !status.ok(); ++i) {
      Range& range = *roster_[i];
      for (std::uint32_t k = 0; k < range.chunks && range.clean.load() > 0; ++k) {
        if (range.parts[k].clean()) drop_slot(range, k);
      }
      status = store_->acquire(slot);
    }
  }
  slots_peak_ = std::max(slots_peak_, store_->held());
  return status;
}

void Engine::drop_slot(Range& range, std::uint32_t index) {
  VTensor& part = range.parts[index];
  if (!ordered_) must("making a chunk writable", &Engine::protect_part, range, index);
  release_slot(range, part);
  range.clean.fetch_sub(1);
}

void Engine::release_slot(Range& range, VTensor& part) {
  if (ordered_) fence_slot(range, part);
  if (in_place_.has(part.slot)) in_place_.give_back(part.slot, slot_after_[part.slot]);
  store_->release(part.slot);
  part.slot = kNone;
}

}  // namespace vt
