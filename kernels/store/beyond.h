// Slots of a host store that is full, for somebody who can neither wait nor be told so (engine/slots.h).
//
// Covers: which such slots there are; their memory, which is kept for the next who asks.
// Leaves: who may ask. Thread-safety: none of its own; the engine's lock guards it.
#pragma once

#include <sys/mman.h>

#include <vector>

#include "base/types.h"

namespace vt {

class Beyond {
 public:
  // Slots are numbered from `first` on.
  Beyond(SlotId first, Bytes slot_bytes) : first_(first), slot_bytes_(slot_bytes) {}
  ~Beyond() {
    for (void* memory : memory_) munmap(memory, slot_bytes_);
  }
  Beyond(const Beyond&) = delete;
  Beyond& operator=(const Beyond&) = delete;

  // False with errno if the system has no memory left.
  bool take(SlotId* slot) {
    if (free_.empty()) {
      void* memory = mmap(nullptr, slot_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (memory == MAP_FAILED) return false;
      free_.push_back(first_ + static_cast<SlotId>(memory_.size()));
      memory_.push_back(memory);
      free_.reserve(memory_.size());  // so that give_back() never allocates
    }
    *slot = free_.back();
    free_.pop_back();
    return true;
  }
  void give_back(SlotId slot) { free_.push_back(slot); }
  // Pre: the slot is no lent one (lent.h).
  bool holds(SlotId slot) const noexcept { return slot >= first_; }
  void* memory(SlotId slot) const { return memory_[slot - first_]; }
  std::size_t count() const noexcept { return memory_.size() - free_.size(); }

 private:
  SlotId first_;
  Bytes slot_bytes_;
  std::vector<void*> memory_;  // by slot
  std::vector<SlotId> free_;
};

}  // namespace vt
