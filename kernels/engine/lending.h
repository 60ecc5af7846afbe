// Memory of the host that its owner lends to a tensor: the content of the tensor is what lies there.
//
// For what is computed in the host's memory anyway, weights that an optimizer updates there: nothing is copied out ever, and
// several processes find the same weights in one copy. A vTensor that is written gives its lent slot up, and has its own from
// then on.
//
// Covers: giving a tensor a content that lies elsewhere, taking such memory back.
// Leaves: slots (store/lent.h), moving bytes (moves.h), who owns the memory (vtensor/harmony/).
// Thread-safety: any thread, at any time; they take the engine's lock, which must not be held.
#pragma once

#include "engine/remake.h"
#include "engine/uses.h"

namespace vt {

class Lending {
 public:
  // `closed`: the device is gone.
  Lending(std::mutex& mutex, const std::atomic<bool>& closed, Ground& ground, RangeTable& ranges, HostStore& store, Slots& slots,
          Moves& moves, Pins& pins, Remake& remake, Uses& uses)
      : mutex_(mutex),
        closed_(closed),
        ground_(ground),
        ranges_(ranges),
        store_(store),
        slots_(slots),
        moves_(moves),
        pins_(pins),
        remake_(remake),
        uses_(uses) {}

  // The content of the tensor at `address` is what lies at `memory` from now on, where it stays until it is taken back; what it
  // was is gone. False where that cannot be, and nothing changed: it is no managed tensor of so many bytes, its address was given
  // away, or an operation uses it. Pre: nobody writes the memory any more, or reads the tensor meanwhile.
  bool lend(const void* address, const void* memory, Bytes bytes);
  // Whether all of the tensor around `address` is what lies in [memory, memory + bytes): nobody wrote it since it was lent that.
  bool lent(const void* address, const void* memory, Bytes bytes);
  // Nothing reads [memory, memory + bytes) any more: vTensors that have their content there have it in a place of their own.
  // Throws OutOfMemory if there is none; the memory must stay then.
  void take_back(const void* memory, Bytes bytes);

 private:
  bool possible(const Range& range) const;
  bool come_to_rest(Lock& lock, Range& range, std::uint64_t serial);
  bool lies_in(const VTensor& part, const void* memory, Bytes bytes) const;

  std::mutex& mutex_;
  const std::atomic<bool>& closed_;
  Ground& ground_;
  RangeTable& ranges_;
  HostStore& store_;
  Slots& slots_;
  Moves& moves_;
  Pins& pins_;
  Remake& remake_;
  Uses& uses_;
};

}  // namespace vt
