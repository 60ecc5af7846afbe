// Engine: another budget, all of memory given up, and the end of managing. See engine.h.

#include "engine/engine.h"

namespace vt {

void Engine::resize(std::size_t budget_chunks) {
  Lock lock(mutex_);
  if (budget_chunks == 0) throw InvalidUse("the budget must hold at least one chunk");
  if (drained_) return;
  // Before chunks with new numbers exist: other threads take them as soon as the pool has grown.
  left_by_.resize(std::max(left_by_.size(), budget_chunks));
  if (ordered_) chunk_after_.resize(std::max(chunk_after_.size(), budget_chunks));
  const Taking taking(*this);
  const std::uint64_t failed_before = failed_copies_;
  for (;;) {
    reap();
    if (ordered_ && pool_.held() <= budget_chunks) {  // what is destroyed must not be in use any more
      quiesce(lock);
      repay();
    }
    Status status = pool_.resize(budget_chunks);
    if (status.ok()) break;
    if (failed_copies_ > failed_before + kFailedCopies) {
      status = last_failure_;
    } else if (status.code == Code::out_of_budget) {
      if (give_up_cached()) continue;
      const std::size_t want = pool_.held() - budget_chunks;
      if (ordered_) {
        status = evict_some(want);
        if (status.ok()) continue;
      } else if (copies_.under_way(Lane::out) < want) {
        status = evict_some(want - copies_.under_way(Lane::out));
      }
      if (wait_for_room(lock, status) || status.ok()) continue;
      if (status.code == Code::nothing_leaves && release_graces()) continue;
    }
    throw OutOfMemory("cannot change the budget from " + format_bytes(pool_.capacity() << shift_) + " to " +
                      format_bytes(budget_chunks << shift_) + ": " + describe(status) +
                      ". The old budget stays in force and nothing was lost.");
  }
  config_.budget_chunks = budget_chunks;
}

void Engine::evict_all() {
  Lock lock(mutex_);
  if (drained_) return;
  while (give_up_cached()) {
  }
  settle(lock);  // what is arriving cannot leave
  const std::uint64_t failed_before = failed_copies_;
  while (failed_copies_ <= failed_before + kFailedCopies && evict_some(pool_.held()).ok()) settle(lock);
}

void Engine::detach() {
  Lock lock(mutex_);
  if (detached_) return;
  if (ordered_) bring_all(lock);
  settle(lock);
  for (const auto& range : records_) {
    if (range->life != Life::live) continue;
    for (std::uint32_t i = 0; i < range->chunks; ++i) {
      // If this fails the vTensor stays absent, and the fault handler brings it when it is touched.
      if (range->parts[i].state == State::absent && !borrow(*range, i).ok()) ++counters_.failures;
    }
  }
  detached_ = true;
  stop_pump(lock);
  if (ordered_) {  // memory nobody uses is the device's again, however long the last tensor lives
    while (give_up_cached()) {
    }
    quiesce(lock);
    pool_.trim();
    in_place_.trim();
  }
  finish_if_drained(lock);
}

void Engine::finish_if_drained(Lock& lock) {
  if (!detached_ || live_ > 0 || waiting_ > 0 || drained_) return;
  settle(lock);
  while (Range* range = cache_.take_any()) {
    unback(*range);
    if (ordered_) recycle(*range);
  }
  if (ordered_) {
    quiesce(lock);
    in_place_.trim();
  }
  pool_.trim();
  window_bytes_ = 0;
  if (!driver_->release(base_).ok() || driver_->live().chunks > 0) fatal("an emptied engine still holds memory");
  driver_.reset();
  store_.reset();
  drained_ = true;
}

}  // namespace vt
