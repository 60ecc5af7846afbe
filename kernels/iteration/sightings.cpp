#include "iteration/sightings.h"

#include <algorithm>
#include <bit>

namespace vt {

namespace {
constexpr std::size_t kMost = 64;   // remembered
constexpr std::size_t kUnlike = 4;  // as many of which no two are alike, and the next is not taken to be either

bool is_turn(std::size_t unlike) noexcept { return unlike >= kUnlike && std::has_single_bit(unlike); }
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
  const bool unlike = first && std::all_of(seen_.begin(), seen_.end(), [](const Seen& s) { return s.times == 1; });
  if (!unlike) return Worth::nothing;
  if (is_turn(seen_.size()) && timed) return Worth::analysing;
  return is_turn(seen_.size() + 1) && !timed ? Worth::timing : Worth::nothing;
}

void Sightings::planned(std::uint64_t hash) noexcept {
  for (Seen& seen : seen_) {
    if (seen.hash == hash) seen.times = 1;
  }
}

}  // namespace vt
