#include "engine/engine.h"

#include <algorithm>

namespace vt {

Engine::Engine(std::unique_ptr<Driver> driver, std::unique_ptr<HostStore> store, const EngineConfig& config)
    : driver_(std::move(driver)),
      store_(std::move(store)),
      ground_(*driver_, config),
      ranges_(ground_),
      pool_(*driver_, config.budget_chunks),
      copies_(*driver_),
      roster_(ground_),
      chunks_(ground_, pool_),
      kind_(choose_kind(ground_, ranges_, roster_, pool_, chunks_, copies_, *store_)),
      pins_(ground_),
      freed_(ground_, ranges_, roster_, pool_, chunks_, *kind_.mappings, *kind_.slots, *kind_.moves),
      remake_(mutex_, ground_, *kind_.moves, freed_),
      eviction_(ground_, roster_, copies_, *kind_.moves, remake_),
      supply_(ground_, pool_, *kind_.mappings, *kind_.slots, *kind_.moves, freed_, eviction_, pins_, demand_),
      allocation_(ground_, ranges_, roster_, pool_, chunks_, *kind_.mappings, *kind_.slots, *kind_.moves, freed_, supply_),
      uses_(ground_, ranges_, pool_, *kind_.slots, *kind_.moves, pins_, remake_, supply_),
      arrivals_(mutex_, ground_, copies_, *kind_.moves, eviction_, supply_, demand_),
      lending_(mutex_, drained_, ground_, ranges_, *store_, *kind_.slots, *kind_.moves, pins_, remake_, uses_),
      streams_(kind_.fences ? std::make_unique<Streams>(mutex_, drained_, ground_, ranges_, *kind_.fences) : nullptr),
      seats_(kind_.fences ? std::make_unique<Seats>(mutex_, drained_, ranges_, pool_, chunks_, freed_, *kind_.moves) : nullptr),
      inspector_(mutex_, drained_, ground_, ranges_, roster_, pool_, chunks_, *kind_.slots, copies_, remake_, streams_.get()) {
  kind_.slots->when_full([this] { freed_.sweep(); });  // what dead tensors have in place
}

// --- allocations ----------------------------------------------------------------------------------------------

void* Engine::allocate(Bytes bytes, const char* operation, Lane stream, bool pinned, const Wish& wish) {
  Call call(mutex_, ground_);
  if (ground_.detached) return nullptr;
  Range* range = nullptr;
  const Status status = allocation_.make(call.lock, bytes, operation, stream, wish, &range);
  if (!status.ok()) {
    const std::string words = inspector_.out_of_memory(status, bytes, operation);
    finish_if_drained(call.lock);
    throw OutOfMemory(words);
  }
  if (pinned) range->pins.fetch_add(1);
  return reinterpret_cast<void*>(range->base);
}

void Engine::free(void* address, bool keep) noexcept {
  Call call(mutex_, ground_);
  if (ground_.forked && !kind_.moves->reachable()) return;  // it is the parent's
  Range* range = ranges_.find_live(address);
  if (range == nullptr || range->base != reinterpret_cast<Address>(address)) {
    fatal("free of an address that is not the start of a live tensor");
  }
  pins_.forget(*range);
  if (range->known.load() && remake_.outlives(*range)) return;
  freed_.bury(*range, keep);
  arrivals_.pump();
  if (ground_.detached) freed_.sweep();  // no new tensor will
  finish_if_drained(call.lock);
}

void Engine::resize(std::size_t budget_chunks) {
  Call call(mutex_, ground_);
  if (budget_chunks == 0) throw InvalidUse("the budget must hold at least one chunk");
  if (!drained_) supply_.resize(call.lock, budget_chunks);
  finish_if_drained(call.lock);
}

void Engine::evict_all() {
  Call call(mutex_, ground_);
  if (!drained_) supply_.evict_all(call.lock);
  finish_if_drained(call.lock);  // the last tensor may have died while this stood
}

void Engine::detach() {
  remake_.suspend(false);  // nothing leaves without a copy any more, and what did is back
  Call call(mutex_, ground_);
  if (ground_.detached) return;
  try {
    kind_.moves->bring_all(call.lock, ranges_, [this](Range& range, std::uint32_t i) { return supply_.bring_beyond(range, i); });
  } catch (...) {
    call.lock.unlock();
    remake_.resume();
    call.lock.lock();
    throw;
  }
  ground_.detached = true;
  arrivals_.stop(call.lock);
  if (drained_) return;  // the last tensor died meanwhile
  // Memory nobody uses now is the device's again, however long the last tensor lives.
  while (freed_.give_up_oldest()) {
  }
  supply_.quiesce(call.lock);
  pool_.trim();
  kind_.slots->trim();
  finish_if_drained(call.lock);
}

void Engine::finish_if_drained(Lock& lock) {
  if (!ground_.detached || roster_.live() > 0 || ground_.standing > 0 || drained_) return;
  kind_.moves->settle(lock);
  freed_.give_up_all();
  supply_.quiesce(lock);
  kind_.slots->trim();
  pool_.trim();
  if (!ranges_.close().ok() || driver_->live().chunks > 0) fatal("an emptied engine still holds memory");
  ground_.stopwatch = nullptr;
  driver_.reset();
  store_.reset();
  drained_ = true;
}

// --- operations -----------------------------------------------------------------------------------------------

Use Engine::part(Range& range, Bytes from, Bytes to, bool write) const noexcept {
  const auto first = static_cast<std::uint32_t>(std::min<Bytes>(from >> ground_.shift, range.chunks));
  const auto last = static_cast<std::uint32_t>(std::min<Bytes>(ground_.chunks_for(to), range.chunks));
  return {&range, first, last, write, false};
}

void Engine::pin_and_fetch(std::span<const Use> uses, const char* operation) {
  Call call(mutex_, ground_);
  for (const Use& use : uses) pins_.pin(use);
  uses_.fetch(call.lock, uses, operation);
}

void Engine::unpin(const Use& use) noexcept {
  if (use.whole) {
    use.range->pins.fetch_sub(1);
    return;
  }
  Call call(mutex_, ground_);
  pins_.unpin(use);
}

// --- plans ----------------------------------------------------------------------------------------------------

void Engine::living(const std::function<void(std::span<Range* const>)>& visit) {
  Lock lock(mutex_);
  std::vector<Range*> live = ranges_.living();
  std::erase_if(live, [](const Range* range) { return range->orphaned; });
  visit(live);
}

void Engine::move_by_plan(std::span<const PlannedMove> out, std::span<const PlannedMove> in) noexcept {
  Call call(mutex_, ground_);
  if (ground_.detached) return;
  arrivals_.move(out, in);
  arrivals_.lend_hands(call.lock);
  finish_if_drained(call.lock);
}

void Engine::forget_arrivals() noexcept {
  Lock lock(mutex_);
  arrivals_.forget();
}

// --- outside operations ---------------------------------------------------------------------------------------

FaultOutcome Engine::on_fault(Address address) noexcept {
  if (drained_ || streams() != nullptr) return FaultOutcome::foreign;  // no processor touches an ordered device's memory
  Call call(mutex_, ground_);
  return uses_.on_fault(call.lock, address);
}

Residency Engine::merge(const void* address) {
  if (Range* range = find(address)) {
    const Use use = all_parts(*range, false);
    pin_and_fetch({&use, 1}, "merge");
    unpin(use);
  }
  return inspector_.residency(address);
}

bool Engine::export_address(const void* address, Export how) {
  if (drained_) return false;
  Call call(mutex_, ground_);
  Range* range = ranges_.find_live(address);
  if (range == nullptr) return false;
  if (how == Export::call_ended) {
    uses_.end_call(*range);
    return true;
  }
  uses_.give_away(call.lock, *range, how);
  return true;
}

// The lock is held across the fork, so that the child finds every structure whole.
void Engine::before_fork() {
  const WaitsAlone alone;
  Lock lock(mutex_);
  if (!drained_) {
    kind_.moves->settle(lock);
    if (store_->shared_after_fork()) {
      ranges_.each_live_part(State::borrowed, [this](Range& range, std::uint32_t i) {
        if (range.exported_for > 0) return;  // a call of another thread is at it, whose system calls do not fault
        ground_.must("unmapping before a fork", [&] { return kind_.slots->withdraw(range, i); });
      });
    }
    store_->before_fork();
    driver_->before_fork();
  }
  lock.release();
}

void Engine::after_fork(bool in_child) {
  Lock lock(mutex_, std::adopt_lock);
  if (drained_) return;
  driver_->after_fork(in_child);
  store_->after_fork(in_child);
  ground_.forked = in_child;
  if (in_child) {  // other threads are the parent's
    ground_.standing = 0;
    ground_.stopwatch = nullptr;  // the device is the parent's
    demand_.forget_threads();
    arrivals_.forget_thread();
  }
  if (!store_->shared_after_fork()) return;
  if (in_child) {
    ranges_.each_live_part(State::borrowed, [this](Range& range, std::uint32_t i) {
      ground_.must("unmapping after a fork", [&] { return kind_.slots->withdraw(range, i); });
    });
  }
  ranges_.each_live_part(State::absent, [this](Range& range, std::uint32_t i) {
    if ((range.exported || ground_.detached) && !kind_.slots->borrow(range, i).ok()) ++ground_.counters.failures;
  });
}

}  // namespace vt
