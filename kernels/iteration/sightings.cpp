#include "iteration/sightings.h"

#include <algorithm>
#include <bit>

namespace vt {

namespace {
constexpr std::size_t kMost = 64;     // remembered
constexpr std::uint64_t kUnlike = 6;  // of so many no two are alike: the next is not taken to be like one of them either

// The sixth, the twelfth, the 24th ...
bool is_turn(std::uint64_t unlike) noexcept { return unlike % kUnlike == 0 && std::has_single_bit(unlike / kUnlike); }
}  // namespace

Sightings::Worth Sightings::look(std::uint64_t hash, bool timed, bool first) {
  const auto seen = std::find_if(seen_.begin(), seen_.end(), [&](const Seen& s) { return s.hash == hash; });
  if (seen == seen_.end()) return look_at_new(hash, timed, first);
  if (!timed) return Worth::timing;
  return std::has_single_bit(++seen->times) ? Worth::analysing : Worth::nothing;
}

Sightings::Worth Sightings::look_at_new(std::uint64_t hash, bool timed, bool first) {
  if (seen_.size() >= kMost) seen_.erase(seen_.begin());
  seen_.push_back({hash, 1});
  ++fresh_;
  const bool unlike = first && std::all_of(seen_.begin(), seen_.end(), [](const Seen& s) { return s.times == 1; });
  if (!unlike) return Worth::nothing;
  if (is_turn(fresh_) && timed) return Worth::analysing;
  return is_turn(fresh_ + 1) && !timed ? Worth::timing : Worth::nothing;
}

void Sightings::planned(std::uint64_t hash) noexcept {
  for (Seen& seen : seen_) {
    if (seen.hash == hash) seen.times = 1;
  }
}

}  // namespace vt
