#include "engine/ordered_mappings.h"

#include <algorithm>

namespace vt {

namespace {
constexpr int kHops = 32;  // from seat to seat, in search of a free one
}  // namespace

Status OrderedMappings::back(Range& range, std::span<const ChunkId> chunks) {
  const Status status = lead_to(range, 0, chunks);
  if (!status.ok()) return status;
  range.before.clear();
  for (const ChunkId chunk : chunks) {
    if (chunk != kNone) range.before.add(fences_.of_chunk(chunk));
  }
  order_.after(range.home, range.before);
  return kOk;
}

void OrderedMappings::take_away(Range& range, std::uint32_t index) {
  fences_.set_chunk(range.parts[index].chunk, fences_.uses_of(range));
}

void OrderedMappings::give_back(ChunkId chunk) {
  order_.passed(fences_.of_chunk(chunk)) ? pool_.release(chunk) : pool_.release_leaving(chunk);
}

// What returns has to come after its own copy out anyway, so it may take the chunk while that goes on.
bool OrderedMappings::take_former(const Range& range, std::uint32_t index, bool returns, ChunkId* chunk) {
  const ChunkId former = range.parts[index].mapped;
  // Who sits there has a seat of its own, which is free or has somebody in it, and so on: at the end of that is one that nobody
  // is about to want. Any other would be the next tensor's, which had to look for another in its turn.
  ChunkId seat = range.parts[index].seat;
  for (int hops = 0; seat != kNone && hops < kHops; ++hops, seat = chunks_.seat_of_holder(seat)) {
    if (!chunks_.seat_is_free(seat) || !pool_.take(seat, true)) continue;
    *chunk = seat;
    return true;
  }
  if (former == kNone || pool_.is_kept(former)) return false;
  if (!pool_.take(former, returns && chunks_.left_by(former) == ground_.address_of(range, index))) return false;
  *chunk = former;
  return true;
}

void OrderedMappings::settle_leaving() {
  if (pool_.leaving() > 0) pool_.settle([this](ChunkId chunk) { return order_.passed(fences_.of_chunk(chunk)); });
}

bool OrderedMappings::keeps(const Range& range) const {
  return std::none_of(&range.parts[0], &range.parts[0] + range.chunks,
                      [](const VTensor& part) { return part.state == State::borrowed; });
}

Status OrderedMappings::lead_to(Range& range, std::uint32_t first, std::span<const ChunkId> chunks) {
  const auto count = static_cast<std::uint32_t>(chunks.size());
  const auto leads = [&](std::uint32_t i) { return chunks[i] == kNone || range.parts[first + i].mapped == chunks[i]; };
  for (std::uint32_t begin = 0, end = 0; begin < count; begin = end) {
    end = begin + 1;
    if (leads(begin)) continue;
    while (end < count && !leads(end)) ++end;
    Fence gone;
    for (std::uint32_t i = begin; i < end; ++i) {
      if (range.parts[first + i].mapped != kNone) gone.add({Lane::out, range.parts[first + i].gone});
    }
    order_.wait(gone);
    Status status = unmap(range, first + begin, first + end);
    const auto run = chunks.subspan(begin, end - begin);
    if (status.ok()) status = driver_.map_run(ground_.address_of(range, first + begin), run);
    if (!status.ok()) return status;
    for (std::uint32_t i = begin; i < end; ++i) range.parts[first + i].mapped = chunks[i];
    ground_.counters.remaps += end - begin;
  }
  return kOk;
}

Status OrderedMappings::unmap(Range& range, std::uint32_t first, std::uint32_t last) {
  for (std::uint32_t begin = first, end = first; begin < last; begin = end) {
    end = begin + 1;
    if (range.parts[begin].mapped == kNone) continue;
    while (end < last && range.parts[end].mapped != kNone) ++end;
    const Status status = driver_.unmap_run(ground_.address_of(range, begin), end - begin);
    if (!status.ok()) return status;
    for (std::uint32_t i = begin; i < end; ++i) range.parts[i].mapped = kNone;
  }
  return kOk;
}

void OrderedMappings::forget(Range& range) {
  forget_if(range, [](const VTensor& part) { return part.mapped != part.chunk; });
}

void OrderedMappings::forget_chunk(Range& range, ChunkId chunk) {
  forget_if(range, [chunk](const VTensor& part) { return part.mapped == chunk; });
}

void OrderedMappings::forget_if(Range& range, const std::function<bool(const VTensor&)>& which) {
  for (std::uint32_t begin = 0, end = 0; range.parts != nullptr && begin < range.chunks; begin = end) {
    end = begin + 1;
    if (!which(range.parts[begin])) continue;
    while (end < range.chunks && which(range.parts[end])) ++end;
    ground_.must("unmapping former chunks", [&] { return unmap(range, begin, end); });
  }
}

}  // namespace vt
