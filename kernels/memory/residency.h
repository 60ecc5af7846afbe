// The life of one vTensor: which states there are, and which event leads from one to another.
//
// Covers: a pure table. No memory moves here, nothing is locked, nothing fails.
// Leaves: doing what an event means (engine/moves.h) and choosing when (engine/eviction.h).
//
//            evict                left
//   resident ------> leaving ----------> absent <----------.
//      ^  |             |                 |  |  ^           | withdraw
//      |  | discard     | stay            |  |  | turn_back |
//      |  '-------------|---> absent      |  '--|-------> borrowed
//      |<---------------'                 |     |  borrow   |
//      |                                  v     |           |
//      '------------- arriving <------------ fetch ---------'
//         arrived
//
//   resident or absent --drop--> dropped --made--> resident, or --made_in_host--> absent
//   resident or absent --give--> given (to the vTensor that was recomputed)
//
// A vTensor is born resident, or borrowed when no chunk can be had.
#pragma once

#include <optional>

#include "device/driver.h"

namespace vt {

enum class State : std::uint8_t {
  resident,  // in its chunk, mapped
  leaving,   // chunk unmapped, being copied out; the chunk still holds the data
  absent,    // in its host slot only, nothing mapped
  arriving,  // being copied in; the slot still holds the data
  borrowed,  // in its host slot, which is mapped at the tensor's address
  dropped,   // nowhere: a recipe makes it again (recipes/)
  given,     // nowhere: it was made for another vTensor, which has it now; its tensor is about to be freed
};
inline constexpr std::size_t kStates = 7;

enum class Event : std::uint8_t {
  evict,      // start copying out
  discard,    // leave without a copy: the slot is still valid
  left,       // the copy out is done
  stay,       // the copy out was cancelled or failed
  fetch,      // start copying in
  arrived,    // the copy in is done
  turn_back,  // the copy in was cancelled or failed
  borrow,     // map the slot
  withdraw,   // unmap the slot
  drop,       // leave without a copy: it can be recomputed
  made,       // it was, in a chunk
  made_in_host,  // it was, in a slot
  give,       // another vTensor takes what it has
};
inline constexpr std::size_t kEvents = 13;

// The state after `event`, or nothing where the event is not allowed.
constexpr std::optional<State> next_state(State state, Event event) noexcept {
  switch (state) {
    case State::resident:
      if (event == Event::evict) return State::leaving;
      if (event == Event::discard) return State::absent;
      if (event == Event::drop) return State::dropped;
      if (event == Event::give) return State::given;
      break;
    case State::leaving:
      if (event == Event::left) return State::absent;
      if (event == Event::stay) return State::resident;
      break;
    case State::absent:
      if (event == Event::fetch) return State::arriving;
      if (event == Event::borrow) return State::borrowed;
      if (event == Event::drop) return State::dropped;
      if (event == Event::give) return State::given;
      break;
    case State::arriving:
      if (event == Event::arrived) return State::resident;
      if (event == Event::turn_back) return State::absent;
      break;
    case State::borrowed:
      if (event == Event::fetch) return State::arriving;
      if (event == Event::withdraw) return State::absent;
      break;
    case State::dropped:
      if (event == Event::made) return State::resident;
      if (event == Event::made_in_host) return State::absent;
      break;
    case State::given:
      break;
  }
  return std::nullopt;
}

const char* name_of(State state) noexcept;
const char* name_of(Event event) noexcept;

// One chunk-sized piece of a tensor.
struct VTensor {
  State state = State::resident;
  bool planned = false;        // a plan is bringing it back
  bool write_wanted = false;   // whoever waits for it will write: it need not arrive as a clean copy
  std::uint8_t failures = 0;   // copies in that failed since it was last resident
  std::uint32_t pins = 0;      // running operations that use this piece alone
  ChunkId chunk = kNone;
  SlotId slot = kNone;         // resident with a slot: clean, the slot holds the same bytes
  Ticket ticket;               // the copy under way while leaving or arriving
  // On ordered devices only, where a vTensor is resident or absent as soon as its copy is asked for:
  ChunkId mapped = kNone;      // the chunk its address leads to, its own or a former one
  ChunkId seat = kNone;        // the chunk a plan wants it to have, whenever it has one; kNone: any
  std::uint64_t gone = 0;      // ticket of the outgoing lane after which it had left: its slot is written, its address unused
  Address took_from = 0;       // swapped-by edge: the vTensor whose leaving freed this chunk; 0 if it was free

  bool clean() const noexcept { return state == State::resident && slot != kNone; }
};

// Whether the handles a vTensor holds fit its state: data is in at least one valid place (I2), a recipe being one while its
// sources are there (Recipes::validate).
constexpr bool consistent(const VTensor& v) noexcept {
  const bool chunk = v.chunk != kNone, slot = v.slot != kNone, copying = v.ticket.number != 0;
  switch (v.state) {
    case State::resident: return chunk && !copying;
    case State::leaving: return chunk && slot && copying;
    case State::absent: return !chunk && slot && !copying;
    case State::arriving: return chunk && slot && copying;
    case State::borrowed: return !chunk && slot && !copying;
    case State::dropped:
    case State::given: return !chunk && !slot && !copying;
  }
  return false;
}

}  // namespace vt
