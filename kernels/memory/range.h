// One allocation: a row of vTensors at consecutive addresses.
//
// Covers: the record, and which of its fields may be read without the engine's lock.
// Leaves: everything done with it (engine.h).
//
// Lock-free reading. The observer pins a range that is wholly resident without taking the lock:
//   observer: pins += 1, then reads `missing`         (all four sequentially consistent)
//   evictor:  missing += 1 (under the lock), then reads `pins`
// At least one of the two sees the other. The observer that sees missing != 0 takes its pin back and goes
// through the lock; the evictor that sees pins != 0 takes its mark back and looks for another victim.
// Records are never freed while the engine lives, so that a late unpin always finds memory.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "memory/residency.h"
#include "order/stream_order.h"

namespace vt {

enum class Life : std::uint8_t {
  unused,  // a record without addresses
  live,    // a tensor owns it
  cached,  // freed, still mapped whole, waiting for an allocation of the same size
  former,  // freed and emptied, but its addresses still lead to chunks it had (ordered devices)
  limbo,   // freed and emptied, but an operation that saw it alive still counts it as pinned, or a device still uses it
};

// Who a tensor is to the recorder.
struct Tag {
  std::uint32_t iteration = 0;      // the iteration that `tensor` and `birth` count in
  std::uint32_t tensor = kNone;
  std::uint32_t birth = kNone;      // which of its allocations it was; kNone if it is older
};

// Who is given an address: anybody, for good; who may use it at any moment, even by system calls, which do not fault: it stays
// where it is; one call, which does so and ends.
enum class Export : std::uint8_t { for_good, fixed, for_a_call, call_ended };

struct Range {
  Address base = 0;
  Bytes bytes = 0;            // as asked for; the last vTensor may be partly used
  std::uint32_t chunks = 0;
  std::uint32_t resident = 0;  // vTensors in state resident
  Life life = Life::unused;
  bool exported = false;      // its address was given away: never clean, and mapped wherever its data is
  bool fixed = false;         // it never moves: Export::fixed
  bool given_away = false;    // for good: Export::for_good, or fixed
  std::uint32_t exported_for = 0;  // calls that it is exported for
  std::uint32_t touches = 0;       // outside operations, since one last brought it, that brought a vTensor of it
  bool orphaned = false;      // the program freed it, but what was dropped is made of it: it lives on until that is not so
  std::atomic<std::uint32_t> tenants{0};  // tensors that lie in it side by side, if it is a shelf (iteration/managed.h); else 0
  std::uint32_t part_pins = 0;
  std::uint32_t roster_at = kNone;  // index in the engine's list of ranges with something resident
  Tick freed_at = 0;
  std::uint64_t serial = 0;         // counts tensors; a record that is used again gets a new one
  Tag tag;
  std::unique_ptr<VTensor[]> parts;
  std::vector<Tick> part_use;  // last use of each vTensor; empty until a part was used alone

  std::atomic<std::uint32_t> pins{0};     // running operations that use the whole range
  std::atomic<std::uint32_t> missing{0};  // vTensors not resident, or about to leave
  std::atomic<std::uint32_t> clean{0};    // resident vTensors whose slot is still valid
  std::atomic<Tick> last_use{0};
  std::atomic<bool> known{false};         // its content is known to the recipes: whoever writes it says so first

  // On ordered devices only: what of the work that was asked for may still touch it.
  Lane home = Lane::none;  // the stream it was allocated on
  // Whether an operation had it as an argument. What never was may be a workspace some library keeps by its bare address
  // (cuBLAS): nobody would bring it back, so it never leaves.
  std::atomic<bool> seen{false};
  std::atomic<std::uint64_t> ready{0};     // copy in after which all that is resident holds its data
  // Lane and number of a ticket after which what was recomputed is there, or was read to make another; 0 for none.
  std::atomic<std::uint64_t> made{0};
  std::atomic<std::uint64_t> used{0};      // the newest use: lane and number of a ticket, packed; 0 for none
  Fence others;                            // uses by other streams before it
  Fence before;                            // what `home` came after when it began: who uses it elsewhere comes after that, too
  std::vector<Lane> recorded;      // streams that may use it until it is freed
  bool seated = false;                     // its vTensors have seats (engine/seats.h)
  std::uint32_t in_seat = 0;               // how many of them sat there when it was allocated
  Range* maker = nullptr;                  // where it was recomputed last: those addresses led where these do

  // Whether it may not move on a device where what was given away may.
  bool stays() const noexcept { return fixed || exported_for > 0; }
  bool pinned() const noexcept { return pins.load() != 0 || part_pins != 0; }
};

// Whether the record still is that tensor. Needs the lock of the engine, as all that is plain here.
inline bool is_still(const Range& range, std::uint64_t serial) noexcept {
  return range.serial == serial && range.life == Life::live;
}

// Whether so many are more than half of its vTensors.
inline bool mostly(std::uint32_t count, const Range& range) noexcept { return 2 * count > range.chunks; }

// What one operation uses: vTensors [first, last) of a range. `whole`: pinned through Range::pins, else one by one.
struct Use {
  Range* range;
  std::uint32_t first;
  std::uint32_t last;
  bool write;
  bool whole;
};

inline Use whole(Range& range, bool write) noexcept { return {&range, 0, range.chunks, write, true}; }
inline Use all_parts(Range& range, bool write) noexcept { return {&range, 0, range.chunks, write, false}; }

// Where a plan wants a new tensor to be: a wish (engine/seats.h).
struct Wish {
  std::span<const ChunkId> chunks;  // by vTensor; kNone: any. Empty: there is no wish
  Range* before = nullptr;          // addresses that led there when such a tensor had them; nullptr: none are known
};

// vTensors [first, last) of a tensor that a plan moves; `serial` tells whether the range still is that tensor.
struct PlannedMove {
  Range* range;
  std::uint64_t serial;
  std::uint32_t first;
  std::uint32_t last;
  bool used = false;  // operations have it as an argument, if not yet: it is no workspace

  bool alive() const noexcept { return is_still(*range, serial); }
  // The same; what the plan knows of its use is known of the tensor from now on.
  bool finds() const noexcept {
    if (!alive()) return false;
    if (used) range->seen.store(true);
    return true;
  }
};

}  // namespace vt
