// What addresses lead to, and what those of freed tensors keep: one of three things in which kinds of device differ.
//
// On an *immediate* device (driver.h) a chunk is mapped where it is used and nowhere else: freed addresses that lose their chunks
// keep nothing, and can be given back as soon as nobody counts them as pinned. On an *ordered* one work that was asked for may
// touch addresses long after the call, and mapping costs more than waiting: addresses go on leading to chunks they had, chunks
// carry fences, and what is given back must be out of use first.
//
// Covers: memory behind a new tensor, taking it away, when addresses are out of use.
// Leaves: choosing chunks (supply.h), moving data (moves.h), host memory at a tensor's address (slots.h).
// Implementations: immediate_mappings.h, ordered_mappings.h. tests/native/kind_contract.cpp holds both to what is said here.
// Requires: the lock.
#pragma once

#include <span>

#include "engine/ground.h"
#include "memory/chunk_pool.h"

namespace vt {

class Mappings {
 public:
  virtual ~Mappings() = default;

  // Puts chunks behind a new range, all or none; kNone: nothing there. The vTensors are not told. Pre: the chunks are taken.
  // (When it fails, addresses of an ordered device may lead to some of them as to former ones.)
  virtual Status back(Range& range, std::span<const ChunkId> chunks) = 0;
  // The chunk can be given to others: unmapped, or fenced by what still uses it. Pre: the tensor is dead, or was never made;
  // nothing is copied.
  virtual void take_away(Range& range, std::uint32_t index) = 0;
  // A chunk that was taken and is not needed. It keeps whatever its next owner had to wait for.
  virtual void give_back(ChunkId chunk) = 0;
  // The chunk a plan wants it to have, if that is free, or else the one its address still leads to: nothing need be mapped then.
  // `returns`: for the data that left it.
  virtual bool take_former(const Range& range, std::uint32_t index, bool returns, ChunkId* chunk) = 0;
  // Which free chunk serves best. `returns`: for data that returns.
  virtual ChunkPool::Take best(bool returns) const = 0;
  // Chunks whose copies out have ended are as free as any.
  virtual void settle_leaving() = 0;

  // A tensor's life begins on `stream`, and ends: what streams were asked for so far may still use it.
  virtual void begin(Range& range, Lane stream) = 0;
  virtual void end(Range& range) = 0;

  // Whether anything that was asked of the device may still touch the addresses.
  virtual bool in_use(const Range& range) = 0;
  virtual void wait_until_unused(const Range& range) = 0;
  // Whether the addresses of a freed range are worth keeping although it lost its chunks.
  virtual bool keeps(const Range& range) const = 0;
  // The addresses lead nowhere any more; those of a live tensor to its own chunks alone. Pre: nothing uses the others.
  virtual void forget(Range& range) = 0;
};

}  // namespace vt
