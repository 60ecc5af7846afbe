#include "engine/freed.h"

#include <algorithm>

namespace vt {

namespace {
constexpr std::size_t kFormers = 4;  // chunks' worth of former addresses of either sort, for each chunk of the budget

// What is left of a vTensor when its tensor is gone: who still pins it, and where its address leads.
VTensor emptied(const VTensor& part) {
  VTensor empty;
  empty.pins = part.pins;
  empty.mapped = part.mapped;
  empty.gone = part.gone;
  return empty;
}
}  // namespace

void Freed::bury(Range& range, bool keep) {
  mappings_.end(range);
  // The last first: what was given back last is taken first, so the next tensor's slots and chunks ascend as its addresses do,
  // and the kernel needs one mapping for many.
  for (std::uint32_t i = range.chunks; i-- > 0;) release_part(range, i);
  roster_.end(range);
  if (keep && wanted_homes_ == 0 && range.resident == range.chunks) {
    range.life = Life::cached;
    cached_.put(&range);
    chunks_.idle(range.chunks);
  } else {
    empty(range);
  }
}

// A resident vTensor keeps its mapped chunk.
void Freed::release_part(Range& range, std::uint32_t index) {
  VTensor& part = range.parts[index];
  if (part.state == State::resident) {
    if (part.clean()) slots_.make_dirty(range, index);
    return;
  }
  roster_.forget(range, index);
  if (part.state == State::borrowed && !slots_.end_borrowed(range, index)) return;  // ends with the addresses
  if (part.chunk != kNone) {  // a copy is under way
    moves_.cancel(range, index);
    chunks_.drop(part);
  }
  if (part.slot != kNone) slots_.release(range, part);
  part = emptied(part);
}

void Freed::empty(Range& range) {
  for (std::uint32_t i = range.chunks; i-- > 0;) {
    VTensor& part = range.parts[i];
    if (part.chunk != kNone) {
      mappings_.take_away(range, i);
      chunks_.drop(part);
    } else if (part.slot != kNone) {
      if (!slots_.end_borrowed(range, i)) continue;  // ends with the addresses
      slots_.release(range, part);
    }
    part = emptied(part);
  }
  ranges_.hide(range);
  if (!ground_.detached && !range.pinned() && mappings_.keeps(range)) {
    keep_former(range);
  } else if (range.pinned() || mappings_.in_use(range)) {
    wait_in_limbo(range);
  } else {
    retire(range);
  }
}

Range* Freed::take(std::uint32_t chunks) {
  Range* range = cached_.take(chunks);
  if (range != nullptr) {
    chunks_.busy(chunks);
    return range;
  }
  range = take_former(chunks);
  if (range == nullptr) sweep();  // a new one will be made: of addresses that are out of use, if there are some
  return range;
}

Range* Freed::take_home(const Wish& wish) {
  Range* range = wish.before;
  if (range != nullptr && range->life == Life::former && range->chunks == wish.chunks.size() && !range->pinned()) {
    std::uint32_t free = 0;
    for (std::uint32_t i = 0; i < range->chunks; ++i) {
      const ChunkId leads_to = range->parts[i].mapped;
      free += leads_to != kNone && leads_to == wish.chunks[i] && chunks_.seat_is_free(leads_to);
    }
    const bool as_it_is = free == range->chunks && pool_.held() + free <= pool_.capacity();
    if (as_it_is || (mostly(free, *range) && !mappings_.in_use(*range))) {  // else none of it can lead elsewhere yet
      formers_like(*range).take(range);  // its record may be another's by now, who has no seat
      return range;
    }
  }
  sweep();  // a new one will be made
  return nullptr;
}

// One as many of whose former chunks as possible are free: those need not be mapped again.
Range* Freed::take_former(std::uint32_t chunks) {
  std::vector<ChunkId> free;
  std::uint32_t most = 0;
  return formers_.take_best(chunks, [&](const Range& range) -> std::uint32_t {
    free.clear();
    for (const VTensor* part = &range.parts[0]; part < &range.parts[0] + range.chunks; ++part) {
      const bool to_be_had = part->mapped != kNone && pool_.is_free(part->mapped) && !pool_.is_kept(part->mapped);
      if (to_be_had) free.push_back(part->mapped);  // as OrderedMappings::take_former has it
    }
    std::sort(free.begin(), free.end());  // two of its addresses may lead to the same chunk
    const auto count = static_cast<std::uint32_t>(std::unique(free.begin(), free.end()) - free.begin());
    if (count <= most) return 0;
    const bool as_it_is = count == range.chunks && pool_.held() + count <= pool_.capacity();
    if (!as_it_is && mappings_.in_use(range)) return 0;  // none of it can lead elsewhere yet
    return most = count;
  });
}

bool Freed::give_up_oldest() {
  Range* range = cached_.take_oldest();
  if (range == nullptr) return false;
  chunks_.busy(range->chunks);
  empty(*range);
  return true;
}

void Freed::give_up_all() {
  while (Range* range = cached_.take_any()) {
    chunks_.busy(range->chunks);
    empty(*range);
  }
}

void Freed::keep_homes(std::size_t chunks) {
  wanted_homes_ = chunks;
  while (give_up_oldest()) {
  }
}

void Freed::keep_former(Range& range) {
  range.life = Life::former;
  RangeCache& kept = formers_like(range);
  kept.put(&range);
  while (kept.chunks() > std::max(kFormers * pool_.capacity(), range.seated ? wanted_homes_ : 0)) {
    Range* oldest = kept.take_oldest();
    if (oldest == nullptr) return;
    wait_in_limbo(*oldest);
  }
}

void Freed::wait_in_limbo(Range& range) {
  range.life = Life::limbo;
  limbo_.push_back(&range);
}

void Freed::retire(Range& range) {
  mappings_.forget(range);
  slots_.end_borrowing(range);
  ranges_.retire(range);
}

void Freed::give_up_addresses() {
  for (RangeCache* kept : {&formers_, &homes_}) {
    while (Range* former = kept->take_any()) wait_in_limbo(*former);
  }
  for (const Range* range : limbo_) {
    if (!range->pinned()) mappings_.wait_until_unused(*range);
  }
  sweep();
}

void Freed::sweep() {
  bool older_waits = false;  // those behind it wait too, most likely, and asking costs
  std::erase_if(limbo_, [&](Range* range) {
    if (range->pinned() || older_waits) return false;
    older_waits = mappings_.in_use(*range);
    if (!older_waits) retire(*range);
    return !older_waits;
  });
}

void Freed::quiesce() {
  sweep();
  for (Range* range : limbo_) slots_.end_borrowing(*range);  // pinned by operations that freed their arguments
  for (const auto& range : ranges_.records()) mappings_.forget(*range);
}

}  // namespace vt
