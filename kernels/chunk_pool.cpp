#include "chunk_pool.h"

#include <algorithm>

namespace vt {

ChunkPool::ChunkPool(Driver& driver, std::size_t capacity) : driver_(driver), capacity_(capacity) {
  const Status status = driver_.set_capacity(capacity);
  if (!status.ok()) throw InvalidUse("cannot provide " + std::to_string(capacity) + " chunks: " + describe(status));
  free_.reserve(capacity);
}

Status ChunkPool::acquire(ChunkId* chunk) {
  if (!free_.empty()) {
    *chunk = free_.back();
    free_.pop_back();
  } else if (held_ >= capacity_ + overdrawn_) {
    return {Code::out_of_budget, "chunk pool", 0};
  } else {
    const Status status = driver_.create(chunk);
    if (!status.ok()) return status;
  }
  ++held_;
  changed();
  return kOk;
}

bool ChunkPool::take(ChunkId chunk) {
  const auto found = std::find(free_.rbegin(), free_.rend(), chunk);
  if (found == free_.rend()) return false;
  free_.erase(std::next(found).base());
  ++held_;
  changed();
  return true;
}

Status ChunkPool::overdraw(ChunkId* chunk) {
  Status status = driver_.set_capacity(capacity_ + overdrawn_ + 1);
  if (!status.ok()) return status;
  status = driver_.create(chunk);
  if (!status.ok()) {
    if (!driver_.set_capacity(capacity_ + overdrawn_).ok()) fatal("a chunk that was not made counts");
    return status;
  }
  peak_overdrawn_ = std::max(peak_overdrawn_, ++overdrawn_);
  ++held_;
  changed();
  return kOk;
}

Status ChunkPool::repay(ChunkId chunk) {
  const auto found = std::find(free_.begin(), free_.end(), chunk);
  Status status = driver_.destroy(chunk);
  if (!status.ok()) return status;
  free_.erase(found);
  --overdrawn_;
  return driver_.set_capacity(capacity_ + overdrawn_);
}

void ChunkPool::release(ChunkId chunk) {
  free_.push_back(chunk);
  --held_;
  changed();
}

Status ChunkPool::resize(std::size_t capacity) {
  if (held_ > capacity) return {Code::out_of_budget, "resize", 0};
  if (overdrawn_ > 0) return {Code::illegal, "resize", 0};
  while (held_ + free_.size() > capacity) {
    const Status status = driver_.destroy(free_.back());
    if (!status.ok()) return status;
    free_.pop_back();
  }
  const Status status = driver_.set_capacity(capacity);
  if (!status.ok()) return status;
  capacity_ = capacity;
  free_.reserve(capacity);
  changed();
  return kOk;
}

void ChunkPool::trim() {
  while (!free_.empty() && driver_.destroy(free_.back()).ok()) free_.pop_back();
}

void ChunkPool::changed() {
  peak_ = std::max(peak_, held_);
  if (held_ + free_.size() > capacity_ + overdrawn_) {
    fatal("the chunk pool holds " + std::to_string(held_ + free_.size()) + " chunks of a budget of " +
          std::to_string(capacity_));
  }
}

std::string ChunkPool::validate() const {
  if (held_ + free_.size() > capacity_ + overdrawn_) return "chunks held and free exceed the budget";
  if (peak_ < held_) return "the peak is below the chunks held";
  std::vector<ChunkId> sorted = free_;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) return "a chunk is free twice";
  if (driver_.live().chunks != held_ + free_.size()) return "the driver has other chunks than the pool";
  return "";
}

}  // namespace vt
