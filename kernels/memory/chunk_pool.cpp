#include "memory/chunk_pool.h"

#include <algorithm>
#include <utility>

namespace vt {

ChunkPool::ChunkPool(Driver& driver, std::size_t capacity) : driver_(driver), capacity_(capacity) {
  const Status status = driver_.set_capacity(capacity);
  if (!status.ok()) {
    throw InvalidUse("cannot provide " + format_bytes(capacity * driver.chunk_bytes()) + " in chunks: " + describe(status) +
                     "; a smaller budget= may do");
  }
  free_.reserve(capacity);
  leaving_.reserve(capacity);
}

Status ChunkPool::acquire(ChunkId* chunk, Take which) {
  if (held_ >= capacity_) return {Code::out_of_budget, "chunk pool", 0};
  if (!free_.empty()) {
    const ChunkId edge = which == Take::newest ? free_.newest() : free_.oldest();
    const auto lower = [this](ChunkId a, ChunkId b) { return numbers_.at(a) < numbers_.at(b); };
    *chunk = pick(numbers_.of.empty() ? edge : *std::max_element(free_.begin(), free_.end(), lower));
  } else if (held_ + leaving_.size() >= capacity_ + overdrawn_) {
    return {Code::out_of_budget, "chunk pool", 0};
  } else {
    const Status status = driver_.create(chunk);
    if (!status.ok()) return status;
  }
  ++held_;
  changed();
  return kOk;
}

bool ChunkPool::acquire_leaving(ChunkId* chunk) {
  if (leaving_.empty() || held_ >= capacity_) return false;
  *chunk = pick_leaving();
  ++held_;
  changed();
  return true;
}

bool ChunkPool::take(ChunkId chunk, bool wanted) {
  if (held_ >= capacity_) return false;
  if (is_free(chunk)) {
    pick(chunk);
  } else if (wanted && leaving_.contains(chunk)) {
    leaving_.erase(chunk);
  } else {
    return false;
  }
  ++held_;
  changed();
  return true;
}

void ChunkPool::number(ChunkNumbers numbers) {
  numbers_ = std::move(numbers);
  nobodys_ = static_cast<std::size_t>(
      std::count_if(free_.begin(), free_.end(), [this](ChunkId chunk) { return numbers_.are_nobodys(chunk); }));
}

Status ChunkPool::overdraw(ChunkId* chunk) {
  if (!free_.empty()) {  // from an earlier one
    *chunk = pick(free_.newest());
  } else if (!leaving_.empty()) {
    *chunk = pick_leaving();
  } else {
    Status status = driver_.set_capacity(capacity_ + overdrawn_ + 1);
    if (!status.ok()) return status;
    status = driver_.create(chunk);
    if (!status.ok()) {
      if (!driver_.set_capacity(capacity_ + overdrawn_).ok()) fatal("a chunk that was not made counts");
      return status;
    }
    peak_overdrawn_ = std::max(peak_overdrawn_, ++overdrawn_);
  }
  ++held_;
  changed();
  return kOk;
}

Status ChunkPool::repay(ChunkId chunk) {
  Status status = driver_.destroy(chunk);
  if (!status.ok()) return status;
  pick(chunk);
  --overdrawn_;
  return driver_.set_capacity(capacity_ + overdrawn_);
}

void ChunkPool::put(ChunkId chunk) {
  free_.push_back(chunk);
  nobodys_ += numbers_.are_nobodys(chunk);
}

ChunkId ChunkPool::pick(ChunkId free) {
  free_.erase(free);
  nobodys_ -= numbers_.are_nobodys(free);
  return free;
}

ChunkId ChunkPool::pick_leaving() {
  const ChunkId chunk = leaving_.oldest();
  leaving_.erase(chunk);
  return chunk;
}

void ChunkPool::release(ChunkId chunk) {
  put(chunk);
  --held_;
  changed();
}

void ChunkPool::release_leaving(ChunkId chunk) {
  leaving_.push_back(chunk);
  --held_;
  changed();
}

void ChunkPool::settle(const std::function<bool(ChunkId)>& left) {
  while (!leaving_.empty() && left(leaving_.oldest())) put(pick_leaving());
}

Status ChunkPool::resize(std::size_t capacity) {
  const bool shrinks = capacity < capacity_;
  if (shrinks && held_ > capacity) return {Code::out_of_budget, "resize", 0};
  while (shrinks && held_ + free() > capacity) {
    const Status status = driver_.destroy(free_.newest());
    if (!status.ok()) return status;
    pick(free_.newest());
  }
  const std::size_t overdrawn = std::max(held_ + free(), capacity) - capacity;
  const Status status = driver_.set_capacity(capacity + overdrawn);
  if (!status.ok()) return status;
  capacity_ = capacity;
  overdrawn_ = overdrawn;
  free_.reserve(capacity);
  leaving_.reserve(capacity);
  changed();
  return kOk;
}

void ChunkPool::trim() {
  while (!free_.empty() && driver_.destroy(free_.newest()).ok()) pick(free_.newest());
}

void ChunkPool::changed() {
  peak_ = std::max(peak_, held_);
  if (held_ + free() > capacity_ + overdrawn_) {
    fatal("the chunk pool holds " + std::to_string(held_ + free()) + " chunks of a budget of " +
          std::to_string(capacity_));
  }
}

std::string ChunkPool::validate() const {
  if (held_ + free() > capacity_ + overdrawn_) return "chunks held and free exceed the budget";
  if (peak_ < held_) return "the peak is below the chunks held";
  std::vector<ChunkId> sorted(free_.begin(), free_.end());
  sorted.insert(sorted.end(), leaving_.begin(), leaving_.end());
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) return "a chunk is free twice";
  const auto nobodys = [this](ChunkId chunk) { return numbers_.are_nobodys(chunk); };
  if (static_cast<std::size_t>(std::count_if(free_.begin(), free_.end(), nobodys)) != nobodys_) return "nobody's are miscounted";
  if (driver_.live().chunks != held_ + free()) return "the driver has other chunks than the pool";
  return "";
}

}  // namespace vt
