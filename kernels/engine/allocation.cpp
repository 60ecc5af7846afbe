#include "engine/allocation.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace vt {

namespace {
// From now on; an empty wish: nowhere.
void seat(Range& range, std::span<const ChunkId> chunks) {
  for (std::uint32_t i = 0; i < range.chunks; ++i) range.parts[i].seat = chunks.empty() ? kNone : chunks[i];
  range.seated = !chunks.empty();
}

std::uint32_t in_seat(const Range& range) {
  if (!range.seated) return 0;
  return static_cast<std::uint32_t>(std::count_if(&range.parts[0], &range.parts[0] + range.chunks, [](const VTensor& part) {
    return part.seat == kNone || part.seat == part.chunk;
  }));
}
}  // namespace

Status Allocation::make(Lock& lock, Bytes bytes, const char* operation, Lane stream, const Wish& wish, Range** made) {
  if (bytes > ranges_.window()) return {Code::failed, "more than all addresses", 0};
  const auto chunks = static_cast<std::uint32_t>(ground_.chunks_for(bytes));
  if (const Status status = check_size(chunks); !status.ok()) return status;
  ++ground_.counters.allocations;
  supply_.begin();
  const Wish wanted = wish.chunks.size() == chunks ? wish : Wish{};
  Range* range = wanted.chunks.empty() ? freed_.take(chunks) : freed_.take_home(wanted);
  if (range != nullptr && range->life == Life::cached) {
    ++ground_.counters.reused;
    if (range->seated) seat(*range, {});
  } else {
    const Status status = build(lock, chunks, operation, stream, wanted, &range);
    if (!status.ok()) return status;
  }
  range->in_seat = in_seat(*range);
  mappings_.begin(*range, stream);
  const std::uint32_t missing = roster_.begin(*range, bytes);
  // Three quarters: early enough that the first eviction finds its operations observed and their uses dated.
  if (ground_.counters.wanted_bytes.current > ground_.bytes_of(pool_.capacity()) / 4 * 3) ground_.press();
  if (missing > 0) {
    ground_.press();
    ++ground_.counters.oversize;
    warn_oversize(operation, shortage(chunks, missing, false));
  }
  chunks_.note_use();
  *made = range;
  return kOk;
}

// What no eviction makes room for is refused before anything leaves for it; but nothing is while something is recomputed.
Status Allocation::check_size(std::size_t chunks) const {
  if (chunks <= pool_.capacity() || moves_.may_overdraw() || ground_.remaking > 0) return kOk;
  if (ground_.config.oversize == Oversize::raise) return {Code::nothing_leaves, "chunk pool", 0};
  return chunks <= pool_.capacity() + slots_.store().capacity() ? kOk : Status{Code::host_full, "host store", 0};
}

// Puts memory behind a former range, or behind a new one where there is none.
Status Allocation::build(Lock& lock, std::uint32_t chunks, const char* operation, Lane stream, const Wish& wish, Range** built) {
  Range* range = *built;
  if (range == nullptr) range = ranges_.make(chunks);
  if (range == nullptr) {
    freed_.give_up_addresses();
    range = ranges_.make(chunks);
  }
  if (range == nullptr) return {Code::failed, "no addresses left", 0};
  if (range->seated || !wish.chunks.empty()) seat(*range, wish.chunks);
  ranges_.show(*range);
  range->home = stream;
  const Status status = back(lock, *range, operation);
  if (!status.ok()) freed_.empty(*range);
  *built = range;
  return status;
}

Status Allocation::back(Lock& lock, Range& range, const char* operation) {
  std::vector<ChunkId> chunks(range.chunks, kNone);
  std::size_t want = 0;
  for (std::uint32_t i = 0; i < range.chunks; ++i) want += !mappings_.take_former(range, i, false, &chunks[i]);
  Status status;
  Found found;
  for (std::uint32_t i = 0; i < range.chunks && status.ok(); ++i) {
    if (chunks[i] == kNone) status = find_chunk(lock, range, i, want--, operation, &chunks[i], found);
  }
  ground_.counters.oversize += found.overdrawn;
  if (status.ok()) status = mappings_.back(range, chunks);
  for (std::uint32_t i = 0; i < range.chunks; ++i) {
    if (chunks[i] == kNone) continue;
    if (status.ok()) {
      chunks_.assign(range.parts[i], chunks[i]);
      range.parts[i].state = State::resident;
    } else {
      supply_.give_back(chunks[i]);
    }
  }
  return status;
}

Shortage Allocation::shortage(std::size_t chunks, std::size_t lacking, bool overdrawn) const {
  return {.used = ground_.bytes_of(chunks),
          .lacking = ground_.bytes_of(lacking),
          .budget = ground_.bytes_of(pool_.capacity()),
          .overdrawn = overdrawn,
          .copies = ground_.copies()};
}

// Leaves `chunk` as it is where the vTensor begins its life in the host store.
Status Allocation::find_chunk(Lock& lock, Range& range, std::uint32_t index, std::size_t want, const char* operation,
                              ChunkId* chunk, Found& found) {
  if (!found.full) {
    const Status status = supply_.take(lock, {.count = want}, chunk);
    if (status.code != Code::nothing_leaves || (ground_.config.oversize == Oversize::raise && ground_.remaking == 0)) {
      return status;
    }
    found.full = !moves_.may_overdraw();  // asking again for each would look through all that is pinned each time
  }
  const Status begun = slots_.begin_in_place(range, index);  // every chunk is pinned by running operations
  if (begun.ok() || !moves_.may_overdraw()) return begun;
  if (!std::exchange(found.overdrawn, true)) warn_oversize(operation, shortage(range.chunks, want, true));
  return supply_.overdraw(chunk);
}

}  // namespace vt
