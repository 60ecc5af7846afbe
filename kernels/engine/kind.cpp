#include "engine/kind.h"

#include "engine/immediate_mappings.h"
#include "engine/immediate_moves.h"
#include "engine/immediate_slots.h"
#include "engine/ordered_moves.h"

namespace vt {

Kind choose_kind(Ground& ground, RangeTable& ranges, Roster& roster, ChunkPool& pool, Chunks& chunks, CopyEngine& copies,
                 HostStore& store) {
  Kind kind;
  if (OrderedDriver* device = ground.driver.ordered()) {
    kind.fences = std::make_unique<Fences>(*device);
    ground.stopwatch = &kind.fences->order().stopwatch();
    auto mappings = std::make_unique<OrderedMappings>(ground, *device, *kind.fences, pool, chunks);
    kind.slots = std::make_unique<OrderedSlots>(ground, *device, roster, store, *kind.fences, *mappings);
    kind.moves = std::make_unique<OrderedMoves>(ground, ranges, roster, chunks, pool, copies, *kind.fences, *mappings,
                                                *kind.slots);
    kind.mappings = std::move(mappings);
  } else {
    kind.mappings = std::make_unique<ImmediateMappings>(ground, pool);
    kind.slots = std::make_unique<ImmediateSlots>(ground, roster, store);
    kind.moves = std::make_unique<ImmediateMoves>(ground, roster, chunks, pool, *kind.slots, copies);
  }
  return kind;
}

}  // namespace vt
