// Engine: what operations, faults, exports and fork ask for. See engine.h.

#include <algorithm>

#include "engine/engine.h"

namespace vt {

namespace {
// A copy in that failed this often is not tried again for this use; the slot is used in place.
constexpr std::uint8_t kCopyAttempts = 2;
constexpr std::uint8_t kBorrowAttempts = 6;
// Chunks a fault brought in are kept from leaving for the next few faults, so that an instruction or a loop that
// reads one tensor and writes another cannot take its own chunks away in turns.
constexpr std::size_t kGraces = 8;
}  // namespace

Range* Engine::find(const void* address) const noexcept {
  const Address offset = reinterpret_cast<Address>(address) - base_;
  if (offset >= window_bytes_.load(std::memory_order_relaxed)) return nullptr;
  return table_[offset >> shift_].load(std::memory_order_relaxed);
}

Use Engine::part(Range& range, Bytes from, Bytes to, bool write) const noexcept {
  const auto first = static_cast<std::uint32_t>(std::min<Bytes>(from >> shift_, range.chunks));
  const auto last = static_cast<std::uint32_t>(std::min<Bytes>((to + chunk_bytes_ - 1) >> shift_, range.chunks));
  return {&range, first, last, write, false};
}

void Engine::pin_and_fetch(std::span<const Use> uses, const char* operation) {
  Lock lock(mutex_);
  for (const Use& use : uses) pin_parts(use);
  fetch(lock, uses, {operation});
}

void Engine::pin_parts(const Use& use) {
  Range& range = *use.range;
  const Tick now = clock_.load(std::memory_order_relaxed);
  for (std::uint32_t i = use.first; i < use.last; ++i) ++range.parts[i].pins;
  range.part_pins += use.last - use.first;
  if (use.last - use.first == range.chunks) {
    range.last_use.store(now, std::memory_order_relaxed);
    return;
  }
  if (range.part_use.empty()) {
    range.part_use.assign(range.chunks, 0);
  }
  std::fill(range.part_use.begin() + use.first, range.part_use.begin() + use.last, now);
}

void Engine::unpin(const Use& use) noexcept {
  if (use.whole) {
    use.range->pins.fetch_sub(1);
    return;
  }
  Lock lock(mutex_);
  unpin_parts(use);
}

void Engine::unpin_parts(const Use& use) noexcept {
  for (std::uint32_t i = use.first; i < use.last; ++i) --use.range->parts[i].pins;
  use.range->part_pins -= use.last - use.first;
}

// Makes every vTensor of `uses` resident, or borrowed. Pre: they are pinned, so what arrived stays.
void Engine::fetch(Lock& lock, std::span<const Use> uses, Fetch fetch) {
  fetch.uses = uses;
  reap();
  if (ordered_) restore_budget();
  for (;;) {
    std::size_t want = 0;
    for (const Use& use : uses) {
      for (std::uint32_t i = use.first; i < use.last; ++i) {
        const State state = use.range->parts[i].state;
        want += state == State::absent || (state == State::borrowed && !stays_borrowed(*use.range, i, fetch));
      }
    }
    Ticket last;  // a lane ends its copies in order: waiting for the last waits for all
    for (const Use& use : uses) {
      for (std::uint32_t i = use.first; i < use.last; ++i) {
        const VTensor& part = use.range->parts[i];
        const bool asked = part.state == State::absent || part.state == State::borrowed;
        if (!fetch_part(lock, *use.range, i, use.write, std::max<std::size_t>(want, 1), fetch)) last = part.ticket;
        if (asked && want > 0) --want;
      }
    }
    if (last.number == 0) break;
    wait_for(lock, last);
    reap();
  }
  if (fetch.borrowed) {
    ++counters_.oversize;  // once an operation, however many vTensors were borrowed
    warn_oversize(fetch.operation);
  }
}

// What is fixed never moves. On an ordered device, memory of the host that others may use goes on being used: who has the address of an
// exported tensor, or an operation that has pinned it and whose work is not yet asked for.
bool Engine::stays_borrowed(const Range& range, std::uint32_t index, const Fetch& fetch) const {
  if (range.parts[index].state != State::borrowed) return false;
  if (!ordered_) return range.fixed;
  const auto own = std::count_if(fetch.uses.begin(), fetch.uses.end(), [&](const Use& use) {
    return use.range == &range && use.first <= index && index < use.last;
  });
  return range.exported || range.pins.load() != 0 || range.parts[index].pins != own;
}

// True if the vTensor can be used now, false if its copy is under way.
bool Engine::fetch_part(Lock& lock, Range& range, std::uint32_t index, bool write, std::size_t want, Fetch& fetch) {
  VTensor& part = range.parts[index];
  for (;;) {
    switch (part.state) {
      case State::resident:
        if (write && part.clean()) drop_slot(range, index);
        return true;
      case State::leaving:
        stay(range, index);
        continue;
      case State::arriving:
        counters_.late += part.planned;
        part.planned = false;
        part.write_wanted |= write;
        return false;
      case State::absent:
      case State::borrowed:
        break;
    }
    Status status{Code::failed, "", 0};
    if (part.failures < kCopyAttempts && !stays_borrowed(range, index, fetch)) {
      ChunkId chunk = kNone;
      status = ordered_ ? take_in_order(&range, index, want, &chunk) : take_chunk(lock, want, &chunk, fetch.keep_graces);
      if (part.state != State::absent && part.state != State::borrowed) {  // another thread was faster
        if (status.ok()) give_back(chunk);
        continue;
      }
      if (status.ok()) {
        part.write_wanted = write;
        status = arrive(range, index, chunk);
        if (status.ok()) return false;
        give_back(chunk);
        ++part.failures;
        ++counters_.failures;
        continue;
      }
    }
    if (part.state == State::absent) {
      const Status borrowed = borrow(range, index);
      if (!borrowed.ok() && ordered_) {
        warn_oversize(fetch.operation, true);
        part.write_wanted = write;
        status = bring_beyond(range, index);
        if (status.ok()) return false;
        // The operation cannot be stopped any more, and would read what is not there.
        fatal(std::string("the device has no memory left for the arguments of ") +
              (fetch.operation != nullptr ? fetch.operation : "an operation") + ": " + describe(status));
      }
      if (!borrowed.ok()) {
        ++counters_.failures;
        if (++part.failures < kBorrowAttempts) continue;
        return true;  // nothing more can be done here; touching it will fault, and try again
      }
    }
    part.failures = 0;
    fetch.borrowed = true;
    return true;
  }
}

FaultOutcome Engine::on_fault(Address address) noexcept {
  if (drained_) return FaultOutcome::foreign;
  Lock lock(mutex_);
  Range* range = find(reinterpret_cast<const void*>(address));
  if (range == nullptr || range->life != Life::live) return FaultOutcome::foreign;
  const auto index = static_cast<std::uint32_t>((address - range->base) >> shift_);
  VTensor& part = range->parts[index];
  if (part.clean()) {
    drop_slot(*range, index);  // mapped for reading only, so this is a write
    return FaultOutcome::served;
  }
  if (part.state == State::resident || part.state == State::borrowed) return FaultOutcome::idle;
  ++counters_.faults;
  const WaitsAlone alone;
  const std::size_t graces = std::min(kGraces, pool_.capacity() / 4);
  if (graces == 0 && part.state == State::absent && borrow(*range, index).ok()) return FaultOutcome::served;
  const Use use{range, index, index + 1, false, false};
  pin_parts(use);
  fetch(lock, {&use, 1}, {"a read outside operations", true});
  graces_.push_back(use);
  while (graces_.size() > graces) {
    unpin_parts(graces_.front());
    graces_.erase(graces_.begin());
  }
  return FaultOutcome::served;
}

bool Engine::release_graces() {
  const bool any = !graces_.empty();
  for (const Use& use : graces_) unpin_parts(use);
  graces_.clear();
  return any;
}

Residency Engine::merge(const void* address) {
  if (Range* range = find(address)) {
    const Use use{range, 0, range->chunks, false, false};
    pin_and_fetch({&use, 1}, "merge");
    unpin(use);
  }
  return residency(address);
}

void Engine::export_address(const void* address) {
  if (drained_) return;
  Lock lock(mutex_);
  Range* range = find(address);
  if (range == nullptr || range->life != Life::live) return;
  if (range->exported && range->missing.load() == 0) return;
  if (ordered_) return export_in_order(lock, *range);
  for (std::uint32_t i = 0; i < range->chunks; ++i) {
    VTensor& part = range->parts[i];
    if (part.clean()) drop_slot(*range, i);
    if (part.state == State::leaving) stay(*range, i);
  }
  range->exported = true;
  for (std::uint32_t i = 0; i < range->chunks; ++i) {
    VTensor& part = range->parts[i];
    while (part.state == State::arriving) {
      wait_for(lock, part.ticket);
      reap();
    }
    if (part.state == State::absent && !borrow(*range, i).ok()) ++counters_.failures;
  }
}

void Engine::fix_address(const void* address) {
  export_address(address);
  Lock lock(mutex_);
  if (Range* range = find(address); range != nullptr && range->life == Life::live) range->fixed = true;
}

Residency Engine::residency(const void* address) {
  Residency result;
  Lock lock(mutex_);
  const Range* range = find(address);
  if (range == nullptr || range->life != Life::live) return result;
  result.chunks = range->chunks;
  for (std::uint32_t i = 0; i < range->chunks; ++i) {
    ++result.in_state[static_cast<std::size_t>(range->parts[i].state)];
    result.clean += range->parts[i].clean();
  }
  return result;
}

std::vector<Piece> Engine::pieces(const void* address) {
  std::vector<Piece> result;
  Lock lock(mutex_);
  const Range* range = find(address);
  if (range == nullptr || range->life != Life::live) return result;
  for (std::uint32_t i = 0; i < range->chunks; ++i) {
    const VTensor& part = range->parts[i];
    result.push_back({address_of(*range, i), bytes_in(*range, i), part.state, part.clean(), part.took_from});
  }
  return result;
}

bool Engine::fits() {
  Lock lock(mutex_);
  return counters_.wanted_bytes.current <= pool_.capacity() << shift_;
}

// The lock is held across the fork, so that the child finds every structure whole.
void Engine::before_fork() {
  const WaitsAlone alone;
  Lock lock(mutex_);
  if (!drained_) {
    settle(lock);
    if (store_->shared_after_fork()) {
      for (const auto& range : records_) {
        if (range->life != Life::live) continue;
        for (std::uint32_t i = 0; i < range->chunks; ++i) {
          if (range->parts[i].state != State::borrowed) continue;
          must("unmapping before a fork", &Engine::unmap_borrowed, *range, i);
          enter(*range, i, Event::withdraw);
        }
      }
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
  forked_ = in_child;
  if (in_child) {  // other threads are the parent's
    waiting_ = taking_ = 0;
    forget_pump();
  }
  if (!store_->shared_after_fork()) return;
  for (const auto& range : records_) {
    if (range->life != Life::live || !(range->exported || detached_)) continue;
    for (std::uint32_t i = 0; i < range->chunks; ++i) {
      if (range->parts[i].state == State::absent && !borrow(*range, i).ok()) ++counters_.failures;
    }
  }
}

}  // namespace vt
