// The host store on an ordered device (a GPU), which uses only some memory of the host in place. See slots.h and fences.h.
//
// Using a slot in place is the rare case, so threads may stand there.
//
// Covers: slots.h. Leaves: making such memory (in_place.h). Requires: the lock.
#pragma once

#include "engine/ordered_mappings.h"
#include "engine/slots.h"
#include "memory/in_place.h"

namespace vt {

class OrderedSlots final : public Slots {
 public:
  OrderedSlots(Ground& ground, OrderedDriver& driver, Roster& roster, HostStore& store, Fences& fences,
               OrderedMappings& mappings)
      : Slots(ground, roster, store),
        fences_(fences),
        order_(fences.order()),
        mappings_(mappings),
        in_place_(driver, fences.order()) {}

  Status withdraw(Range& range, std::uint32_t index) override;
  bool stays_borrowed(const Range& range, std::uint32_t index, std::span<const Use> uses) const override;
  // The device may still use it: it ends with the addresses.
  bool end_borrowed(Range&, std::uint32_t) override { return false; }
  HostPlace place(SlotId slot) const override { return in_place_.has(slot) ? in_place_.place(slot) : store_.place(slot); }
  Bytes pinned() const override { return store_.pinned() + ground_.bytes_of(in_place_.count()); }
  void trim() override {
    in_place_.trim();
    Slots::trim();
  }

 private:
  Status prepare(Range& range, std::uint32_t index) override;
  Status prepare_new(Range& range, std::uint32_t index, SlotId slot) override;
  void undo_prepare_new(SlotId slot) override;
  void before_release(const Range& range, const VTensor& part) override;
  void allow_writing(Range&, std::uint32_t) override {}  // nothing is mapped for reading only

  Fences& fences_;
  StreamOrder& order_;
  OrderedMappings& mappings_;
  InPlace in_place_;
};

}  // namespace vt
