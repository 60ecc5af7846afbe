// What addresses lead to on an immediate device (memory of the processor): chunks, while tensors hold them. See mappings.h.
#pragma once

#include "engine/mappings.h"

namespace vt {

class ImmediateMappings final : public Mappings {
 public:
  ImmediateMappings(Ground& ground, ChunkPool& pool) : ground_(ground), pool_(pool) {}

  Status back(Range& range, std::span<const ChunkId> chunks) override;
  void take_away(Range& range, std::uint32_t index) override;
  void give_back(ChunkId chunk) override { pool_.release(chunk); }
  bool take_former(const Range&, std::uint32_t, bool, ChunkId*) override { return false; }
  ChunkPool::Take best(bool) const override { return ChunkPool::Take::newest; }
  void settle_leaving() override {}
  void begin(Range&, Lane) override {}
  void end(Range&) override {}
  bool in_use(const Range&) override { return false; }
  void wait_until_unused(const Range&) override {}
  bool keeps(const Range&) const override { return false; }
  void forget(Range&) override {}

 private:
  Ground& ground_;
  ChunkPool& pool_;
};

}  // namespace vt
