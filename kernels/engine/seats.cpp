#include "engine/seats.h"

#include <algorithm>
#include <utility>

namespace vt {

namespace {
constexpr std::size_t kTurns = 2;  // iterations for which addresses are kept: what makes something again needs some of its own
}  // namespace

std::vector<ChunkId> Seats::chunks() const {
  const Lock lock(mutex_);
  if (closed_.load()) return {};
  std::vector<ChunkId> all(pool_.free_chunks().begin(), pool_.free_chunks().end());
  all.insert(all.end(), pool_.leaving_chunks().begin(), pool_.leaving_chunks().end());
  for (const auto& range : ranges_.records()) {
    for (std::uint32_t i = 0; range->parts != nullptr && i < range->chunks; ++i) {
      if (range->parts[i].chunk != kNone) all.push_back(range->parts[i].chunk);
    }
  }
  std::sort(all.begin(), all.end());
  for (ChunkId next = 0; all.size() < pool_.capacity(); ++next) {
    const auto at = std::lower_bound(all.begin(), all.end(), next);
    if (at == all.end() || *at != next) all.insert(at, next);
  }
  return all;
}

std::vector<ChunkId> Seats::held(const Range& range, std::uint64_t serial) const {
  const Lock lock(mutex_);
  std::vector<ChunkId> chunks;
  if (closed_.load() || !is_still(range, serial)) return chunks;
  for (std::uint32_t i = 0; i < range.chunks; ++i) chunks.push_back(range.parts[i].chunk);
  return chunks;
}

void Seats::want(Range& range, std::uint64_t serial, std::span<const ChunkId> chunks) {
  const Lock lock(mutex_);
  if (closed_.load() || !is_still(range, serial) || range.chunks != chunks.size()) return;
  for (std::uint32_t i = 0; i < range.chunks; ++i) {
    range.parts[i].seat = chunks[i];
    if (range.parts[i].chunk != kNone) chunks_.note_seat(range.parts[i]);
  }
  range.seated = true;
}

Wish Seats::again(const Range& range, std::vector<ChunkId>* chunks) const {
  const Lock lock(mutex_);
  chunks->clear();
  if (closed_.load() || range.life != Life::live || !range.seated) return {};
  for (std::uint32_t i = 0; i < range.chunks; ++i) chunks->push_back(range.parts[i].seat);
  return {*chunks, range.maker};
}

void Seats::begin(std::size_t vtensors, ChunkNumbers numbers) {
  const Lock lock(mutex_);
  if (closed_.load()) return;
  freed_.keep_homes(kTurns * vtensors);
  pool_.number(std::move(numbers));
}

void Seats::wait_for_leaving() {
  Lock lock(mutex_);
  if (!closed_.load()) moves_.settle(lock);
}

void Seats::pause() {
  const Lock lock(mutex_);
  pool_.number({});
}

void Seats::end() {
  const Lock lock(mutex_);
  if (closed_.load()) return;
  freed_.keep_homes(0);
  pool_.number({});
}

}  // namespace vt
