// What the engine chooses where no plan says so: pure functions, no state, no clock.
//
// Covers: which range gives up chunks when room is needed, the reactive orders as named switches; where what is touched outside
// operations is used; how long recomputing may take.
// Leaves: the scan over candidates and the eviction itself (engine/eviction.h).
#pragma once

#include <optional>
#include <string>

#include "base/types.h"

namespace vt {

enum class VictimOrder : std::uint8_t {
  lru,             // longest unused first
  size_staleness,  // largest bytes x staleness first: the filter of DELTA (arXiv 2203.15980), whose staleness is
                   // in nanoseconds; here it is in operations, so that a run repeats exactly
};

// How what was chosen leaves.
enum class Leaving : std::uint8_t {
  copy,     // to the host store
  cheaper,  // by whichever costs less: a copy out and one back, or making it again (the director of DELTA)
  drop,     // only what can be recomputed does
};

enum class Granularity : std::uint8_t {
  chunk,   // exactly as many vTensors of the victim as are needed
  tensor,  // the whole victim: the baseline the vTensor paper (JCST 40(6), 2025) compares with
};

struct Candidate {
  Tick last_use;
  Bytes resident;
  std::optional<std::uint64_t> making_ns = {};  // what making it again takes, where it is dropped whatever that is
};

// The candidate with the highest score leaves first. Of what is dropped, that which frees the most for the least work and was
// unused for longest, whatever the order: DTR's heuristic (arXiv 2006.09616, section 4.1).
constexpr double score(VictimOrder order, const Candidate& candidate, Tick now) noexcept {
  const double staleness = static_cast<double>(now - candidate.last_use) + 1.0;
  const double bytes = static_cast<double>(candidate.resident);
  if (candidate.making_ns) return staleness * bytes / (static_cast<double>(*candidate.making_ns) + 1.0);
  return order == VictimOrder::lru ? staleness : staleness * bytes;
}

// Whether a vTensor that was touched outside operations is used where it lies, instead of being brought. What is brought once
// more had left again meanwhile, and may do so for ever: whoever reads more than there is room for in a circle, as what a kernel
// of oneDNN packs does in the first operation under pressure, which nobody observes. `touches` brought one of the range's
// `chunks` vTensors since an operation last did; `room`: one can be had for which nothing leaves.
constexpr bool belongs_in_place(std::uint32_t touches, std::uint32_t chunks, bool room) noexcept {
  return !room && touches >= chunks;
}

// Whether recomputing has taken too much of an iteration in which all else takes `others_ns`. Layers that each run once more
// take a third.
constexpr bool takes_too_much(std::uint64_t making_ns, std::uint64_t others_ns) noexcept { return making_ns > others_ns; }

// Throw InvalidUse for a name that is not in the list above.
VictimOrder victim_order_from(const std::string& name);
Granularity granularity_from(const std::string& name);
Leaving leaving_from(const std::string& name);

}  // namespace vt
