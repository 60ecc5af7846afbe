// Engine: where addresses lead on a device whose work goes on after the call that asked for it (a GPU). See engine_order.cpp.
//
// Mapping costs more than waiting, and chunks often come back. So an address keeps leading to a chunk that has left it, and the
// addresses of a freed tensor to the chunks it had: nothing uses them, so that nothing reads another's data there. When the vTensor
// returns, or another tensor of that size is made, chunks that are free need not be mapped again. Only where another chunk comes is
// the old one unmapped, after whatever used it there. What is side by side is mapped by one call.

#include <algorithm>

#include "engine/engine.h"

namespace vt {

namespace {
constexpr std::size_t kFormers = 4;  // chunks' worth of addresses that lead to former chunks, for each of the budget
}  // namespace

// The chunk its address still leads to, if it is free: nothing need be mapped then. What returns has to come after its own copy out
// anyway.
bool Engine::take_former(const Range& range, std::uint32_t index, bool returns, ChunkId* chunk) {
  const ChunkId former = range.parts[index].mapped;
  if (former == kNone || !pool_.take(former, returns && left_by_[former] == address_of(range, index))) return false;
  *chunk = former;
  return true;
}

// A freed range as many of whose chunks as possible are free: those need not be mapped again.
Range* Engine::reuse_former(std::uint32_t chunks) {
  std::vector<ChunkId> free;
  std::uint32_t most = 0;
  return formers_.take_best(chunks, [&](const Range& range) -> std::uint32_t {
    free.clear();
    for (const VTensor* part = &range.parts[0]; part < &range.parts[0] + range.chunks; ++part) {
      if (part->mapped != kNone && pool_.is_free(part->mapped)) free.push_back(part->mapped);
    }
    std::sort(free.begin(), free.end());  // two of its addresses may lead to the same chunk
    const auto count = static_cast<std::uint32_t>(std::unique(free.begin(), free.end()) - free.begin());
    if (count <= most) return 0;
    const bool as_it_is = count == range.chunks && pool_.held() + count <= pool_.capacity();
    if (!as_it_is && !order_.passed(touched_by(range))) return 0;  // none of it can lead elsewhere yet
    return most = count;
  });
}

void Engine::keep_former(Range& range) {
  range.life = Life::former;
  formers_.put(&range);
  while (formers_.chunks() > kFormers * pool_.capacity()) {
    Range* oldest = formers_.take_oldest();
    if (oldest == nullptr) return;
    oldest->life = Life::limbo;
    limbo_.push_back(oldest);
  }
}

// No addresses are left: those of freed tensors are given back, after whatever uses them.
void Engine::retire_formers() {
  while (Range* former = formers_.take_any()) {
    former->life = Life::limbo;
    limbo_.push_back(former);
  }
  for (const Range* range : limbo_) {
    if (!range->pinned()) order_.wait(touched_by(*range));
  }
  sweep_limbo();
}

// Memory for a new tensor.
Status Engine::back_in_order(Range& range, const char* operation) {
  std::vector<ChunkId> chunks(range.chunks, kNone);
  std::size_t want = 0;
  for (std::uint32_t i = 0; i < range.chunks; ++i) want += !take_former(range, i, false, &chunks[i]);
  Status status;
  for (std::uint32_t i = 0; i < range.chunks && status.ok(); ++i) {
    if (chunks[i] != kNone) continue;
    status = take_in_order(nullptr, 0, want--, &chunks[i]);
    if (status.code != Code::nothing_leaves || config_.oversize == Oversize::raise) continue;
    // Every chunk is pinned by operations that are being asked for: this one begins its life in the host store.
    status = born_in_place(range, i);
    if (status.ok()) continue;
    warn_oversize(operation, true);
    status = overdraw(&chunks[i]);
  }
  if (status.ok()) status = lead_to(range, 0, chunks);
  for (std::uint32_t i = 0; i < range.chunks; ++i) {
    if (chunks[i] == kNone) continue;
    if (!status.ok()) {
      give_back(chunks[i]);
      continue;
    }
    assign(range.parts[i], chunks[i]);
    range.parts[i].state = State::resident;
    order_.after(range.home, chunk_after_[chunks[i]]);
  }
  return status;
}

// The addresses from vTensor `first` on lead to these chunks from now on; kNone: to what they lead to now. Pre: nothing may still use
// them where they lead elsewhere, but for the copies by which they left.
Status Engine::lead_to(Range& range, std::uint32_t first, std::span<const ChunkId> chunks) {
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
    Status status = unmap_formers(range, first + begin, first + end);
    if (status.ok()) status = driver_->map_run(address_of(range, first + begin), chunks.subspan(begin, end - begin));
    if (!status.ok()) return status;
    for (std::uint32_t i = begin; i < end; ++i) range.parts[first + i].mapped = chunks[i];
    counters_.remaps += end - begin;
  }
  return kOk;
}

// The addresses of vTensors [first, last) lead nowhere from now on.
Status Engine::unmap_formers(Range& range, std::uint32_t first, std::uint32_t last) {
  for (std::uint32_t begin = first, end = first; begin < last; begin = end) {
    end = begin + 1;
    if (range.parts[begin].mapped == kNone) continue;
    while (end < last && range.parts[end].mapped != kNone) ++end;
    const Status status = driver_->unmap_run(address_of(range, begin), end - begin);
    if (!status.ok()) return status;
    for (std::uint32_t i = begin; i < end; ++i) range.parts[i].mapped = kNone;
  }
  return kOk;
}

// The same for those of a range for which `which` holds, without fail.
void Engine::forget_former(Range& range, const std::function<bool(const VTensor&)>& which) {
  for (std::uint32_t begin = 0, end = 0; range.parts != nullptr && begin < range.chunks; begin = end) {
    end = begin + 1;
    if (!which(range.parts[begin])) continue;
    while (end < range.chunks && which(range.parts[end])) ++end;
    Status status = unmap_formers(range, begin, end);
    for (int attempt = 1; attempt < 3 && !status.ok(); ++attempt) {
      ++counters_.failures;
      status = unmap_formers(range, begin, end);
    }
    if (!status.ok()) fatal("unmapping former chunks failed three times: " + describe(status));
  }
}

}  // namespace vt
