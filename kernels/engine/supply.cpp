#include "engine/supply.h"

#include <algorithm>
#include <utility>

#include "engine/messages.h"

namespace vt {

namespace {
constexpr std::uint64_t kFailedCopies = 2;  // more in one call, and the host store cannot be written
bool none_is_free(const Status& status) { return status.code == Code::out_of_budget || status.code == Code::refused; }
}  // namespace

bool Supply::host_store_fails(std::uint64_t failed_before) const {
  return moves_.failed() > failed_before + kFailedCopies;
}

Status Supply::take(Lock& lock, const Wanted& wanted, ChunkId* chunk) {
  const Demand::Taking taking(demand_);
  const std::uint64_t failed_before = moves_.failed();
  for (;;) {
    moves_.catch_up(lock);
    if (wanted.range != nullptr && mappings_.take_former(*wanted.range, wanted.index, true, chunk)) return kOk;
    Status status = take_any(mappings_.best(wanted.range != nullptr), chunk);
    if (!none_is_free(status)) return status;
    // Where nothing is copied, what lies in the host's memory is as good there: nothing is recomputed for that.
    if (!ground_.copies() && (wanted.range != nullptr || belong_in_place(wanted.count) || leave_in_vain(wanted.count))) {
      return {Code::nothing_leaves, "", 0};
    }
    if (host_store_fails(failed_before)) return moves_.last_failure();
    status = make_room(lock, [&] { return pool_.free() > 0 && pool_.held() < pool_.capacity() ? 0 : wanted.count; });
    if (status.ok()) continue;
    if (status.code != Code::nothing_leaves || wanted.keep_graces || !pins_.release_graces()) return status;
  }
}

// Starts leaving until what is `missing` is on its way, and waits for the first of it. ok: something changed, look again.
template <typename Missing>
Status Supply::make_room(Lock& lock, Missing missing) {
  Status why{Code::nothing_leaves, "", 0};
  while (missing() > moves_.coming_free()) {
    why = eviction_.evict_some(missing() - moves_.coming_free());
    if (!why.ok()) break;
  }
  return missing() == 0 || moves_.wait_for_room(lock, why) ? kOk : why;
}

// In chunks. Freed tensors keep as many again, each for the next of its size; where sizes never come again, as those of batches
// of other lengths, more would only fill the budget.
std::size_t Supply::most_wanted() const { return ground_.counters.wanted_bytes.peak >> ground_.shift; }

// Where plans lack chunks that much is used in place sooner or later, as it cannot be recomputed: at once, as everything else
// would be dropped first, in vain. But no more than ever had to be.
bool Supply::belong_in_place(std::size_t count) const {
  if (ground_.config.oversize == Oversize::raise) return false;
  return slots_.store().held() + count <= std::min(ground_.shortfall.load(std::memory_order_relaxed), slots_.peak());
}

// Recomputing takes most of the time by now, and the host's memory has room. A device that cannot use that in place keeps to its
// budget, however long that takes.
bool Supply::leave_in_vain(std::size_t count) {
  if (ground_.config.oversize == Oversize::raise || moves_.may_overdraw()) return false;
  return slots_.store().used() + count <= slots_.store().capacity() && eviction_.is_in_vain();
}

// A chunk for which nothing need leave. What freed tensors hold is better than what is still copied out.
Status Supply::take_any(ChunkPool::Take which, ChunkId* chunk) {
  if (pool_.free() == pool_.leaving()) mappings_.settle_leaving();
  for (;;) {
    if (pool_.free() == 0 && freed_.idle() > most_wanted() && freed_.give_up_oldest()) continue;
    const Status status = pool_.acquire(chunk, which);
    if (!none_is_free(status)) return status;
    if (freed_.give_up_oldest()) continue;
    return pool_.acquire_leaving(chunk) ? kOk : status;
  }
}

Status Supply::take_free(const Range& range, std::uint32_t index, ChunkId* chunk) {
  return mappings_.take_former(range, index, true, chunk) ? kOk : take_any(mappings_.best(true), chunk);
}

Status Supply::overdraw(ChunkId* chunk) {
  const Status status = moves_.may_overdraw() ? pool_.overdraw(chunk) : Status{Code::nothing_leaves, "", 0};
  return status.ok() ? kOk : Status{Code::nothing_leaves, status.call, status.error};
}

Status Supply::bring_beyond(Range& range, std::uint32_t index) {
  Status status;
  for (int attempt = 0; attempt < 2; ++attempt) {
    ChunkId chunk = kNone;
    status = take_any(mappings_.best(true), &chunk);
    if (none_is_free(status)) status = overdraw(&chunk);
    if (status.ok()) {
      status = moves_.arrive(range, index, chunk);
      if (status.ok()) return status;
      give_back(chunk);
    }
    ++ground_.counters.failures;
  }
  return status;
}

void Supply::leave_overdrawn() {
  while (!ground_.detached && pool_.overdrawn() > pool_.free()) {
    if (!freed_.give_up_oldest() && !eviction_.evict_some(pool_.overdrawn() - pool_.free()).ok()) return;
  }
}

void Supply::resize(Lock& lock, std::size_t budget_chunks) {
  const Demand::Taking taking(demand_);
  const std::uint64_t failed_before = moves_.failed();
  bool waited = false;
  for (;;) {
    moves_.reap();
    if (pool_.held() <= budget_chunks) quiesce(lock);  // what is destroyed must not be in use any more
    Status status = pool_.resize(budget_chunks);
    if (status.ok()) return;
    if (host_store_fails(failed_before)) {
      status = moves_.last_failure();
    } else if (status.code == Code::out_of_budget) {
      if (freed_.give_up_oldest()) continue;
      status = make_room(lock, [&] { return pool_.held() > budget_chunks ? pool_.held() - budget_chunks : 0; });
      if (status.ok() || (status.code == Code::nothing_leaves && pins_.release_graces())) continue;
      if (status.code == Code::host_full && !std::exchange(waited, true)) {  // dead tensors may have slots that are in use
        quiesce(lock);
        continue;
      }
    }
    throw OutOfMemory("cannot change the budget from " + format_bytes(ground_.bytes_of(pool_.capacity())) + " to " +
                      format_bytes(ground_.bytes_of(budget_chunks)) + ": " + why_no_chunk(status, ground_.copies()) +
                      ". The old budget stays in force and nothing was lost.");
  }
}

void Supply::evict_all(Lock& lock) {
  while (freed_.give_up_oldest()) {
  }
  moves_.settle(lock);  // what is arriving cannot leave
  const std::uint64_t failed_before = moves_.failed();
  while (!host_store_fails(failed_before) && eviction_.evict_some(pool_.held()).ok()) moves_.settle(lock);
}

void Supply::quiesce(Lock& lock) {
  moves_.quiesce(lock);
  freed_.quiesce();
  moves_.reap();  // chunks beyond the budget go back now
}

}  // namespace vt
