// What vTensors have in the host store: slots, and using them in place.
//
// Covers: taking slots and giving them back; clean vTensors, which keep one only to leave for free later; borrowing (the slot is
// mapped at the tensor's address).
// Leaves: copying to and from slots (moves.h), where a slot lies (host_store.h). Implementations: immediate_slots.h (every slot
// can be used in place), ordered_slots.h (only some memory of the host can, in_place.h, and what is read or written carries
// fences).
// Requires: the lock.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "engine/roster.h"
#include "store/host_store.h"

namespace vt {

class Slots {
 public:
  Slots(Ground& ground, Roster& roster, HostStore& store) : ground_(ground), roster_(roster), store_(store) {}
  virtual ~Slots() = default;
  Slots(const Slots&) = delete;
  Slots& operator=(const Slots&) = delete;

  // Takes a free slot. If there is none, `when_full` is called, and then clean vTensors give theirs up before anything fails.
  // Nothing fails for whoever stands in an operation that cannot be stopped any more (`in_operation`, or something is being made
  // again): it gets one beyond what the store may hold, and whoever can be told is told next. The one behind `before` if that is
  // free.
  Status acquire(SlotId* slot, bool in_operation = false, SlotId before = kNone);
  void when_full(std::function<void()> sweep) { sweep_ = std::move(sweep); }
  // A slot nothing was written to.
  void give_back(SlotId slot) { store_.release(slot); }
  // The slot of a vTensor is free.
  void release(const Range& range, VTensor& part);
  // A clean resident vTensor gives its slot up, as it is written, or its slot is needed.
  void make_dirty(Range& range, std::uint32_t index);

  // Uses an absent vTensor where it is.
  Status borrow(Range& range, std::uint32_t index);
  // A new vTensor begins its life in the host store. Pre: nothing uses its address.
  Status begin_in_place(Range& range, std::uint32_t index);
  // A borrowed vTensor is absent again. May stand until nothing uses it.
  virtual Status withdraw(Range& range, std::uint32_t index);
  // Whether a vTensor must go on being used in place, though the caller, whose `uses` have pinned it, would have it elsewhere.
  virtual bool stays_borrowed(const Range& range, std::uint32_t index, std::span<const Use> uses) const = 0;
  // The address of a dead tensor leads to its slot no more. False if that must wait until the addresses are out of use.
  virtual bool end_borrowed(Range& range, std::uint32_t index) = 0;
  // What of that waited. Pre: the addresses are out of use.
  void end_borrowing(Range& range);

  virtual HostPlace place(SlotId slot) const { return store_.place(slot); }
  virtual Bytes pinned() const { return store_.pinned(); }
  // Memory that nobody uses goes back. Pre: nothing is under way.
  virtual void trim() {
    if (!ground_.forked) store_.trim();  // else what is pinned is the parent's
  }
  const HostStore& store() const noexcept { return store_; }
  std::size_t peak() const noexcept { return peak_; }
  void reset_peak() noexcept { peak_ = store_.held(); }

 protected:
  // Makes the slot one that can be mapped at the address of an absent vTensor, with its bytes, or of a new one.
  virtual Status prepare(Range& range, std::uint32_t index) = 0;
  virtual Status prepare_new(Range& range, std::uint32_t index, SlotId slot) = 0;
  virtual void undo_prepare_new(SlotId slot) = 0;
  // The slot is about to be released: what its next owner must come after, and what else was made for it.
  virtual void before_release(const Range& range, const VTensor& part) = 0;
  // A chunk that is mapped for reading may be written from now on.
  virtual void allow_writing(Range& range, std::uint32_t index) = 0;

  Ground& ground_;
  Roster& roster_;
  HostStore& store_;

 private:
  std::function<void()> sweep_ = [] {};
  std::size_t peak_ = 0;
};

}  // namespace vt
