#include "memory/in_place.h"

namespace vt {

Status InPlace::take(SlotId slot) {
  if (!spare_.empty()) {
    order_.wait(spare_.front().second);
    places_[slot] = spare_.front().first;
    spare_.pop_front();
    return kOk;
  }
  HostPlace made;
  const Status status = driver_.make_place(&made);
  if (status.ok()) places_[slot] = made;
  return status;
}

void InPlace::give_back(SlotId slot, const Fence& after) {
  const auto found = places_.find(slot);
  spare_.emplace_back(found->second, after);
  places_.erase(found);
}

void InPlace::trim() {
  for (const auto& [place, after] : spare_) {
    if (!driver_.drop_place(place).ok()) fatal("memory of the host that nothing uses cannot be given back");
  }
  spare_.clear();
}

}  // namespace vt
