#include "iteration/seating.h"

#include <algorithm>
#include <bit>

namespace vt {

void Seating::begin(Seats& seats, const std::vector<Present>& present) {
  if (none()) return seats.end();
  if (!chosen_) choose(seats, present);
  for (const Present& one : present) seats.want(*one.range, one.serial, chunks(one.tensor));
  seats.begin(chunk_.size(), numbers_);
}

// Who sits on another's seat, and is wanted all the time, would never leave it: that one had to look for another each time.
void Seating::send_home(Engine& engine, const std::vector<Present>& present, bool as_planned) {
  if (none() || engine.seats() == nullptr || (as_planned && homecomings_ > 0)) return;
  if (!std::has_single_bit(++homecomings_)) return;
  const auto moves = misplaced(*engine.seats(), present);
  if (moves.empty()) return;
  engine.move_by_plan(moves, {});
  engine.seats()->wait_for_leaving();
  engine.move_by_plan({}, moves);
}

std::vector<PlannedMove> Seating::misplaced(const Seats& seats, const std::vector<Present>& present) const {
  std::vector<PlannedMove> moves;
  for (const Present& one : present) {
    const std::vector<ChunkId> held = seats.held(*one.range, one.serial);
    const auto wanted = chunks(one.tensor);
    const auto count = static_cast<std::uint32_t>(std::min(held.size(), wanted.size()));
    const auto sits_elsewhere = [&](std::uint32_t i) {
      return held[i] != kNone && wanted[i] != kNone && held[i] != wanted[i];
    };
    for (std::uint32_t begin = 0, end = 0; begin < count; begin = end) {
      end = begin + 1;
      if (!sits_elsewhere(begin)) continue;
      while (end < count && sits_elsewhere(end)) ++end;
      moves.push_back({one.range, one.serial, begin, end});
    }
  }
  return moves;
}

void Seating::choose(Seats& seats, const std::vector<Present>& present) {
  chosen_ = true;
  std::vector<ChunkId> left = seats.chunks();
  std::vector<ChunkId> chunk_of(left.size(), kNone);  // by number
  for (const Present& one : present) {
    const std::vector<ChunkId> held = seats.held(*one.range, one.serial);
    const auto numbers = chunks(one.tensor);
    for (std::size_t i = 0; i < std::min(held.size(), numbers.size()); ++i) {
      if (held[i] == kNone || numbers[i] >= chunk_of.size() || chunk_of[numbers[i]] != kNone) continue;
      const auto at = std::lower_bound(left.begin(), left.end(), held[i]);
      if (at == left.end() || *at != held[i]) continue;  // it is another number's
      chunk_of[numbers[i]] = held[i];
      left.erase(at);
    }
  }
  auto next = left.begin();
  for (ChunkId& chunk : chunk_of) {
    if (chunk == kNone) chunk = *next++;
  }
  for (std::uint32_t number = 0; number < chunk_of.size(); ++number) {
    if (numbers_.of.size() <= chunk_of[number]) numbers_.of.resize(chunk_of[number] + 1);
    numbers_.of[chunk_of[number]] = number;
  }
  for (ChunkId& number : chunk_) {
    if (number != kNone) numbers_.given = std::max(numbers_.given, number + 1);
    number = number < chunk_of.size() ? chunk_of[number] : kNone;
  }
}

Wish Seating::wish(std::uint32_t tensor) const {
  const auto wanted = chunks(tensor);
  const bool none = std::ranges::all_of(wanted, [](ChunkId chunk) { return chunk == kNone; });
  return none ? Wish{} : Wish{wanted, before_[tensor]};
}

}  // namespace vt
