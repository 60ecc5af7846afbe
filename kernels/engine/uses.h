// What operations, faults and exports need to be there.
//
// Covers: bringing every vTensor of what is used, or borrowing it (I1); touches outside operations; addresses that are given
// away.
// Leaves: chunks to bring it to (supply.h), the copies (moves.h), what a plan brings ahead of time (arrivals.h).
// Requires: the lock. All of it may let go of the lock.
#pragma once

#include <span>

#include "engine/remake.h"
#include "engine/supply.h"

namespace vt {

enum class FaultOutcome : std::uint8_t {
  foreign,  // no live tensor lies there
  served,   // it can be touched now
  idle,     // there was nothing to do: another thread was faster, or the fault is a real error
};

class Uses {
 public:
  Uses(Ground& ground, RangeTable& ranges, ChunkPool& pool, Slots& slots, Moves& moves, Pins& pins, Remake& remake,
       Supply& supply)
      : ground_(ground),
        ranges_(ranges),
        pool_(pool),
        slots_(slots),
        moves_(moves),
        pins_(pins),
        remake_(remake),
        supply_(supply) {}

  // Makes every vTensor of `uses` resident, or borrowed if no chunk can be had. Pre: they are pinned, so what arrived stays.
  // `keep_graces`: see Wanted.
  void fetch(Lock& lock, std::span<const Use> uses, const char* operation, bool keep_graces = false);
  // Somebody touched `address` and could not.
  FaultOutcome on_fault(Lock& lock, Address address);
  // The address of a live range leaves our sight: from now on never clean, and always mapped.
  void give_away(Lock& lock, Range& range, Export how = Export::for_good);
  // One of the calls that it was given to has ended; with the last it is as any other.
  void end_call(Range& range);

 private:
  struct Fetch {
    std::span<const Use> uses;
    const char* operation;
    bool keep_graces;
    bool in_place = false;     // something has to be used in the host store
    bool overdrawn = false;    // or got a chunk beyond the budget
    bool full = false;         // nothing leaves: the rest is used in place without asking again for each
    bool host_full = false;    // or could, had the host store room
    std::size_t lacking = 0;   // vTensors without a chunk when the first had none
  };

  void remake(Lock& lock, const Fetch& fetch);
  std::size_t missing(const Fetch& fetch) const;
  Ticket fetch_all(Lock& lock, Fetch& fetch);
  bool fetch_part(Lock& lock, const Use& use, std::uint32_t index, std::size_t want, Fetch& fetch);
  bool bring(Lock& lock, const Use& use, std::uint32_t index, std::size_t want, Fetch& fetch);
  bool use_in_place(const Use& use, std::uint32_t index, Fetch& fetch);
  std::size_t lacking(const Fetch& fetch) const;
  void warn_of(const Fetch& fetch, bool overdrawn) const;

  Ground& ground_;
  RangeTable& ranges_;
  ChunkPool& pool_;
  Slots& slots_;
  Moves& moves_;
  Pins& pins_;
  Remake& remake_;
  Supply& supply_;
};

}  // namespace vt
