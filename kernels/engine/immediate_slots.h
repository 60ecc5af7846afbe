// The host store on an immediate device: every slot can be used in place. See slots.h.
#pragma once

#include "engine/slots.h"

namespace vt {

class ImmediateSlots final : public Slots {
 public:
  using Slots::Slots;

  bool stays_borrowed(const Range& range, std::uint32_t index, std::span<const Use> uses) const override;
  bool end_borrowed(Range& range, std::uint32_t index) override;

 private:
  Status prepare(Range& range, std::uint32_t index) override;
  Status prepare_new(Range&, std::uint32_t, SlotId) override { return kOk; }
  void undo_prepare_new(SlotId) override {}
  void before_release(const Range&, const VTensor&) override {}
  void allow_writing(Range& range, std::uint32_t index) override;
};

}  // namespace vt
