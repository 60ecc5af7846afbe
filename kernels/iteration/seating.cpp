#include "iteration/seating.h"

#include <algorithm>

namespace vt {

void Seating::begin(Seats& seats, const std::vector<Present>& present) {
  if (none()) return;
  if (!chosen_) choose(seats, present);
  for (const Present& one : present) seats.want(*one.range, one.serial, chunks(one.tensor));
  seats.begin(chunk_.size());
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
  for (ChunkId& number : chunk_) number = number < chunk_of.size() ? chunk_of[number] : kNone;
}

Wish Seating::wish(std::uint32_t tensor) const {
  const auto wanted = chunks(tensor);
  const bool any = std::all_of(wanted.begin(), wanted.end(), [](ChunkId chunk) { return chunk == kNone; });
  return any ? Wish{} : Wish{wanted, before_[tensor]};
}

}  // namespace vt
