// Where absent vTensors wait: chunk-sized slots in RAM or in a file, or elsewhere (beyond.h, lent.h).
//
// Covers: how many slots there are, which are free, and where each lies.
// Leaves: copying (driver.h) and the choice of what waits here (engine.h).
// Thread-safety: none of its own; the engine's lock guards it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/driver.h"
#include "base/types.h"
#include "store/beyond.h"
#include "store/lent.h"

namespace vt {

class HostStore {
 public:
  virtual ~HostStore() = default;
  HostStore(const HostStore&) = delete;
  HostStore& operator=(const HostStore&) = delete;

  // How many slots such a store has; fewer where numbers would run out (beyond.h, lent.h).
  static std::size_t slots_in(Bytes capacity_bytes, Bytes slot_bytes);

  // Takes a free slot, the one behind `before` if that is free. host_full when `capacity` slots are taken or the disk has no
  // room; nothing changed then.
  virtual Status acquire(SlotId* slot, SlotId before = kNone) = 0;
  // Takes one all the same, in RAM. host_full when the system has no memory left.
  Status acquire_beyond(SlotId* slot);
  void release(SlotId slot);
  HostPlace place(SlotId slot) const;
  // A slot that is never written, with what lies at `memory`. It counts nowhere but here.
  SlotId lend(const void* memory) { return lent_.lend(memory); }
  std::size_t lent() const noexcept { return lent_.count(); }
  // What free slots keep goes back to the system, also of those that are released from now on. They may be taken again. Pre:
  // nothing is under way.
  virtual void trim() {}

  // A child sees every slot as it was at the fork. RAM gives that by itself (copy on write). A file is shared, so
  // slots taken before a fork are frozen on both sides: readable, never written or reused while the child lives.
  virtual void before_fork() {}
  virtual void after_fork(bool /*in_child*/) {}
  // Whether the slot may be written in place. If not, write_copy() its bytes to a fresh one first.
  bool writable(SlotId slot) const noexcept { return !Lent::holds(slot) && (beyond_.holds(slot) || writable_own(slot)); }
  // True if a slot that is mapped somewhere must be unmapped before a fork (its mapping would be shared).
  virtual bool shared_after_fork() const noexcept { return false; }
  virtual std::string name() const = 0;

  Bytes slot_bytes() const noexcept { return slot_bytes_; }
  std::size_t capacity() const noexcept { return capacity_; }
  // Slots counted against the capacity, and slots that somebody holds. They differ only while a fork keeps slots
  // from being reused, and in a forked child.
  std::size_t used() const noexcept { return used_ + beyond_.count(); }
  std::size_t held() const noexcept { return held_own() + beyond_.count(); }
  virtual Bytes pinned() const noexcept { return 0; }

 protected:
  // Own slots are numbered below twice the capacity: a forked child has its parent's, and as many of its own (file_store.cpp).
  HostStore(Bytes slot_bytes, std::size_t capacity)
      : slot_bytes_(slot_bytes), capacity_(capacity), beyond_(static_cast<SlotId>(2 * capacity), slot_bytes) {}

  virtual void release_own(SlotId slot) = 0;
  virtual HostPlace place_own(SlotId slot) const = 0;
  virtual bool writable_own(SlotId /*slot*/) const noexcept { return true; }
  virtual std::size_t held_own() const noexcept { return used_; }

  // The bookkeeping both stores share: reuse the slot behind `before`, for copies to be side by side, or that freed last (its
  // pages are warm), else open the next one.
  SlotId next_slot(SlotId before = kNone) const noexcept {
    if (before != kNone && before + 1 < opened_ && links_[before + 1].free) return before + 1;
    return newest_ == kNone ? opened_ : newest_;
  }
  bool full() const noexcept { return used() >= capacity_; }
  bool is_new(SlotId slot) const noexcept { return slot == opened_; }
  void take(SlotId slot);
  void give(SlotId slot);
  // Runs of free slots of which some were taken once: [first, last).
  template <typename Visit>
  void each_free_run(Visit visit) const {
    for (SlotId first = 0, last = 0; first < opened_; first = last + 1) {
      for (last = first; last < opened_ && links_[last].free;) ++last;
      if (first < last) visit(first, last < opened_ ? last : static_cast<SlotId>(capacity_));
    }
  }

 private:
  // Of a slot that is free: those that were freed before and after it.
  struct Link {
    SlotId older = kNone, newer = kNone;
    bool free = false;
  };

  Bytes slot_bytes_;
  std::size_t capacity_;
  std::size_t used_ = 0;
  SlotId opened_ = 0;        // slots [0, opened_) have been handed out at least once
  SlotId newest_ = kNone;    // freed last
  std::vector<Link> links_;  // by slot
  Lent lent_;
  Beyond beyond_;
};

// Copies `bytes` from one place to another, at once. failed with an errno if a file would not be read or written.
Status write_copy(const HostPlace& from, const HostPlace& to, Bytes bytes);

// Makes memory of this process fast for a device to copy, and takes that back. `pin` may refuse: then copies are slower, and
// right.
struct Pinning {
  std::function<bool(void* memory, Bytes bytes)> pin;
  std::function<void(void* memory)> unpin;
};

// Slots in private memory of this process: copied on write by fork, so that a child sees the right bytes. With `pinning`, memory
// is pinned in large pieces as slots in them are first taken.
std::unique_ptr<HostStore> make_ram_store(Bytes slot_bytes, Bytes capacity_bytes, Pinning pinning = {});

// Slots in an unnamed file in `directory`. Room is claimed on the disk before a slot is handed out, so that a
// full disk is noticed when nothing has moved yet. Throws InvalidUse if the directory can not be used.
std::unique_ptr<HostStore> make_file_store(Bytes slot_bytes, Bytes capacity_bytes, const std::string& directory);

}  // namespace vt
