// Which iterations without a plan are worth one.
//
// One that comes again is: the second time, the fourth, the eighth ... (the analysis may have been busy with another one, or have
// failed). Where no two are ever alike (experts, of which other ones have no tokens each time) any of them is, as the others find
// back into its plan (way_back.h).
//
// Covers: what was seen. Leaves: what was done in them (recorder.h), whether there is a plan (plan_runner.h).
// Thread-safety: none; recording.h guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace vt {

class Sightings {
 public:
  enum class Worth : std::uint8_t {
    nothing,
    timing,     // the next of its kind will be worth analysing, if it is known how long its rows take
    analysing,
  };

  // An iteration with this hash ended, and no plan fits it. `timed`: how long its rows took is known. `first`: there is no plan
  // at all.
  Worth look(std::uint64_t hash, bool timed, bool first);
  // There is a plan for it now.
  void planned(std::uint64_t hash) noexcept;
  void forget() noexcept {
    seen_.clear();
    fresh_ = 0;
  }

 private:
  struct Seen {
    std::uint64_t hash;
    std::uint32_t times;  // since a plan was made of it
  };

  Worth look_at_new(std::uint64_t hash, bool timed, bool first);

  std::vector<Seen> seen_;
  std::uint64_t fresh_ = 0;  // so many had not been seen, or were forgotten since
};

}  // namespace vt
