// Engine: what a vTensor has in the host store, and using it in place. See engine.h and host_store.h.

#include <algorithm>

#include "engine.h"

namespace vt {

Status Engine::borrow(Range& range, std::uint32_t index) {
  VTensor& part = range.parts[index];
  Status status = own_slot(part);
  if (status.ok()) status = driver_->map_host(address_of(range, index), store_->place(part.slot));
  if (status.ok()) enter(range, index, Event::borrow);
  return status;
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
  store_->release(part.slot);
  part.slot = kNone;
}

}  // namespace vt
