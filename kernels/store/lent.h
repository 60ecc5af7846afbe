// Memory of the host that others own and vTensors find their content in: slots that are read, and never written.
//
// Who owns it may share it with other processes, and write it while no vTensor is to have what is there (engine/lending.h).
//
// Covers: which lent slots there are, and where each lies.
// Leaves: what they are lent for. HostStore hands out all slots, lent or its own.
// Thread-safety: none of its own; the engine's lock guards it.
#pragma once

#include <vector>

#include "base/types.h"

namespace vt {

class Lent {
 public:
  // Lent slots have the upper half of all numbers.
  static constexpr SlotId kFirst = SlotId{1} << 31;
  static constexpr bool holds(SlotId slot) noexcept { return slot >= kFirst && slot != kNone; }

  SlotId lend(const void* memory) {
    if (free_.empty()) {
      memory_.push_back(memory);
      free_.reserve(memory_.size());  // so that give_back() never allocates
      return kFirst + static_cast<SlotId>(memory_.size() - 1);
    }
    const SlotId slot = free_.back();
    free_.pop_back();
    memory_[slot - kFirst] = memory;
    return slot;
  }
  void give_back(SlotId slot) {
    memory_[slot - kFirst] = nullptr;
    free_.push_back(slot);
  }
  const void* memory(SlotId slot) const { return memory_[slot - kFirst]; }
  std::size_t count() const noexcept { return memory_.size() - free_.size(); }

 private:
  std::vector<const void*> memory_;  // by slot
  std::vector<SlotId> free_;
};

}  // namespace vt
