// Memory of the host that an ordered device uses in place, for operations that alone need more than the budget.
//
// Covers: which slots of the host store lie in such memory instead of their own, and what of it is spare. On immediate devices
// every slot can be used in place, and nothing of this is needed.
// Leaves: when it is used (engine/ordered_slots.h), how it is made (OrderedDriver::make_place).
// Thread-safety: none of its own; the engine's lock guards it.
#pragma once

#include <deque>
#include <unordered_map>
#include <utility>

#include "order/stream_order.h"

namespace vt {

class InPlace {
 public:
  InPlace(OrderedDriver& driver, StreamOrder& order) : driver_(driver), order_(order) {}

  bool has(SlotId slot) const { return !places_.empty() && places_.contains(slot); }
  // Pre: has(slot).
  HostPlace place(SlotId slot) const { return places_.at(slot); }
  // From now on the slot lies here; content unspecified. failed where the device offers no such memory. Stands until nothing uses
  // what was spare. Pre: not has(slot).
  Status take(SlotId slot);
  // The slot lies in its own memory again, and what it had is spare once `after` is passed. Pre: has(slot), unmapped.
  void give_back(SlotId slot, const Fence& after);
  // Gives back what is spare. Pre: nothing is under way.
  void trim();
  std::size_t count() const noexcept { return places_.size() + spare_.size(); }

 private:
  OrderedDriver& driver_;
  StreamOrder& order_;
  std::unordered_map<SlotId, HostPlace> places_;
  std::deque<std::pair<HostPlace, Fence>> spare_;  // the oldest first
};

}  // namespace vt
