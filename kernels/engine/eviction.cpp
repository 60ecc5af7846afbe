#include "engine/eviction.h"

#include <algorithm>
#include <limits>

namespace vt {

Status Eviction::leave(Range& range, std::uint32_t index, bool* pinned) {
  range.missing.fetch_add(1);
  *pinned = range.pins.load() != 0;
  const Status status = *pinned ? kOk : moves_.leave(range, index);
  if (*pinned || !status.ok()) range.missing.fetch_sub(1);
  return status;
}

Status Eviction::evict_some(std::size_t want) {
  ground_.press();
  while (Range* victim = choose_victim()) {
    if (const auto worth_ns = worth_dropping(*victim)) {
      const Status status = remake_.leave(*victim, 0, victim->chunks, worth_ns);
      if (status.code == Code::nothing_leaves && victim->pins.load() != 0) continue;  // an operation was faster
      return status;
    }
    std::size_t started = 0;
    for (const std::uint32_t index : victims_in(*victim)) {
      if (started >= want && ground_.config.granularity == Granularity::chunk) break;
      bool pinned = false;
      const Status status = leave(*victim, index, &pinned);
      if (pinned) break;  // look for another victim
      if (!status.ok()) return started > 0 ? kOk : status;
      ++started;
    }
    copies_.go();
    if (started > 0) return kOk;
  }
  return {Code::nothing_leaves, "", 0};
}

// The director of DELTA (arXiv 2203.15980, section 4), with measured speeds and times in the place of constants.
std::optional<std::uint64_t> Eviction::worth_dropping(const Range& range) const {
  if (ground_.config.leaving == Leaving::copy || remake_.verifies() || !remake_.may_drop(range)) return std::nullopt;
  if (ground_.config.leaving == Leaving::drop) return std::numeric_limits<std::uint64_t>::max();
  const auto making_ns = remake_.making_ns(range);
  const std::uint64_t copying = copying_ns(range);
  return making_ns && *making_ns > 0 && *making_ns < copying ? std::optional(copying) : std::nullopt;
}

// Out and back, behind what is under way; nobody computes meanwhile. 0 while no copy was measured.
std::uint64_t Eviction::copying_ns(const Range& range) const {
  double ns = 0;
  for (const Lane lane : {Lane::out, Lane::in}) {
    const auto moved = static_cast<double>(copies_.moved(lane));
    const double bytes = static_cast<double>(range.bytes + ground_.bytes_of(copies_.under_way(lane)));
    if (moved > 0) ns += bytes * static_cast<double>(ground_.driver.times(lane).busy_ns) / moved;
  }
  return static_cast<std::uint64_t>(ns);
}

Range* Eviction::choose_victim() const {
  const Tick now = ground_.now();
  Range* best = nullptr;
  double best_score = -1.0;
  for (Range* range : roster_.ranges()) {
    if (range->pins.load() != 0 || !moves_.may_leave(*range)) continue;
    std::optional<std::uint64_t> making_ns;
    if (ground_.config.leaving == Leaving::drop) {
      if (remake_.may_drop(*range)) making_ns = remake_.making_ns(*range);
      if (!making_ns) continue;
    }
    Tick use = range->last_use.load(std::memory_order_relaxed);
    if (range->part_pins != 0 || !range->part_use.empty()) {
      const auto victims = victims_in(*range);
      if (victims.empty()) continue;
      if (!range->part_use.empty()) use = std::max(use, range->part_use[victims.front()]);
    }
    const double value = score(ground_.config.order, {use, ground_.bytes_of(range->resident), making_ns}, now);
    if (value > best_score) {
      best = range;
      best_score = value;
    }
  }
  return best;
}

// The vTensors of a range that may leave, longest unused first.
std::vector<std::uint32_t> Eviction::victims_in(const Range& range) const {
  std::vector<std::uint32_t> victims;
  for (std::uint32_t i = 0; i < range.chunks; ++i) {
    if (range.parts[i].state == State::resident && range.parts[i].pins == 0) victims.push_back(i);
  }
  if (!range.part_use.empty()) {
    std::stable_sort(victims.begin(), victims.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return range.part_use[a] < range.part_use[b]; });
  }
  return victims;
}

}  // namespace vt
