// Which kind of device this is: the one place that asks.
//
// Covers: choosing the implementations of mappings.h, slots.h and moves.h.
// Leaves: everything they do.
#pragma once

#include <memory>

#include "engine/chunks.h"
#include "engine/fences.h"
#include "engine/mappings.h"
#include "engine/moves.h"
#include "engine/slots.h"

namespace vt {

struct Kind {
  std::unique_ptr<Fences> fences;  // where the device waits, else nullptr
  std::unique_ptr<Mappings> mappings;
  std::unique_ptr<Slots> slots;
  std::unique_ptr<Moves> moves;
};

Kind choose_kind(Ground& ground, RangeTable& ranges, Roster& roster, ChunkPool& pool, Chunks& chunks, CopyEngine& copies,
                 HostStore& store);

}  // namespace vt
