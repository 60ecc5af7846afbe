// What addresses lead to on an ordered device (a GPU). See mappings.h and fences.h.
//
// Mapping costs more than waiting, and chunks often come back. So an address keeps leading to a chunk that has left it, and the
// addresses of a freed tensor to the chunks it had: nothing uses them, so that nothing reads another's data there. When the
// vTensor returns, or another tensor of that size is made, chunks that are free need not be mapped again. Only where another
// chunk comes is the old one unmapped, after whatever used it there. What is side by side is mapped by one call.
//
// Where a plan says which chunk a vTensor is to have (its seat), it takes that one whenever it is free: once all sit
// there, nothing is mapped any more.
//
// A chunk whose copy out goes on is the last to be taken: computing would wait for that copy though other chunks are free.
//
// Covers: mappings.h; leading addresses elsewhere. Requires: the lock.
#pragma once

#include <functional>

#include "engine/chunks.h"
#include "engine/fences.h"
#include "engine/mappings.h"

namespace vt {

class OrderedMappings final : public Mappings {
 public:
  OrderedMappings(Ground& ground, OrderedDriver& driver, Fences& fences, ChunkPool& pool, Chunks& chunks)
      : ground_(ground), driver_(driver), fences_(fences), order_(fences.order()), pool_(pool), chunks_(chunks) {}

  Status back(Range& range, std::span<const ChunkId> chunks) override;
  void take_away(Range& range, std::uint32_t index) override;
  void give_back(ChunkId chunk) override;
  bool take_former(const Range& range, std::uint32_t index, bool returns, ChunkId* chunk) override;
  // What is allocated takes the chunk freed last, most likely by its own stream, so that nobody waits; what returns, the one
  // freed first.
  ChunkPool::Take best(bool returns) const override { return returns ? ChunkPool::Take::oldest : ChunkPool::Take::newest; }
  void settle_leaving() override;
  void begin(Range& range, Lane stream) override { fences_.begin(range, stream); }
  void end(Range& range) override { fences_.end(range); }
  bool in_use(const Range& range) override { return !order_.passed(fences_.touched_by(range)); }
  void wait_until_unused(const Range& range) override { order_.wait(fences_.touched_by(range)); }
  bool keeps(const Range& range) const override;
  void forget(Range& range) override;

  // The addresses from vTensor `first` on lead to these chunks from now on; kNone: to what they lead to now. Pre: nothing may
  // still use them where they lead elsewhere, but for the copies by which they left.
  Status lead_to(Range& range, std::uint32_t first, std::span<const ChunkId> chunks);
  // The addresses of vTensors [first, last) lead nowhere from now on.
  Status unmap(Range& range, std::uint32_t first, std::uint32_t last);
  // No address leads to this chunk any more. Pre: it is free, and nothing uses it.
  void forget_chunk(Range& range, ChunkId chunk);

 private:
  void forget_if(Range& range, const std::function<bool(const VTensor&)>& which);

  Ground& ground_;
  OrderedDriver& driver_;
  Fences& fences_;
  StreamOrder& order_;
  ChunkPool& pool_;
  Chunks& chunks_;
};

}  // namespace vt
