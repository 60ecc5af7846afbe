// Engine: moves a plan asks for. See engine.h.
//
// Leaves start at once. Arrivals wait in line for free chunks; a thread of its own, the pump, starts them as copies out end, because
// an operation may run for long while a lane stands idle. Whoever needs a chunk now goes before them.

#include <algorithm>
#include <new>
#include <system_error>

#include "engine/engine.h"

namespace vt {

void Engine::living(const std::function<void(std::span<Range* const>)>& visit) {
  Lock lock(mutex_);
  std::vector<Range*> live;
  live.reserve(live_);
  for (const auto& range : records_) {
    if (range->life == Life::live) live.push_back(range.get());
  }
  std::sort(live.begin(), live.end(), [](const Range* a, const Range* b) { return a->serial < b->serial; });
  visit(live);
}

void Engine::move_by_plan(std::span<const PlannedMove> out, std::span<const PlannedMove> in) noexcept {
  Lock lock(mutex_);
  if (detached_) return;
  reap();
  if (ordered_) restore_budget();
  for (const PlannedMove& move : out) leave_by_plan(move);
  for (const PlannedMove& move : in) {
    for (std::uint32_t i = move.first; i < std::min(move.last, move.range->chunks); ++i) {
      arrivals_.push_back({move.range, move.serial, i});
    }
  }
  pump();
  wake_pump();
  lend_hands(lock);
}

// The thread that computes is between two operations: here bytes move best (host_lane.h).
void Engine::lend_hands(Lock& lock) {
  if (!hands_wanted_.exchange(false, std::memory_order_relaxed)) return;
  ++waiting_;
  lock.unlock();
  driver_->lend_hands();
  lock.lock();
  --waiting_;
  finish_if_drained(lock);
}

void Engine::wake_pump() {
  if (arrivals_.empty() || ordered_ || driver_->moves_in_wait()) return;
  if (pump_ == nullptr && !pump_stops_) {
    try {
      pump_ = new std::thread(&Engine::run_pump, this);
    } catch (const std::system_error&) {
      return;  // no thread to be had now: what waits is started by the rows that follow
    }
  }
  pump_wakes_.notify_one();
}

void Engine::leave_by_plan(const PlannedMove& move) {
  Range& range = *move.range;
  if (range.serial != move.serial || range.life != Life::live || range.exported) return;
  if (ordered_ && !range.seen.load()) return;
  for (std::uint32_t i = move.first; i < std::min(move.last, range.chunks); ++i) {
    if (range.parts[i].state != State::resident || range.parts[i].pins != 0) continue;
    range.missing.fetch_add(1);
    const bool pinned = range.pins.load() != 0;
    const Status status = pinned ? kOk : leave(range, i);
    if (pinned || !status.ok()) range.missing.fetch_sub(1);
    if (pinned) return;
    if (!status.ok()) {
      ++counters_.failures;
      return;
    }
    pressed_.store(true, std::memory_order_relaxed);
  }
}

void Engine::forget_arrivals() noexcept {
  Lock lock(mutex_);
  arrivals_.clear();
  arrivals_wait_.store(false, std::memory_order_relaxed);
}

// Starts what can be started.
void Engine::pump() {
  while (!arrivals_.empty() && taking_ == 0 && (ordered_ ? pump_run() : pump_one(arrivals_.front()))) {
    if (!ordered_) arrivals_.pop_front();
  }
  arrivals_wait_.store(!arrivals_.empty(), std::memory_order_relaxed);
}

// False if there is no chunk for it now.
bool Engine::pump_one(const Arrival& arrival) {
  Range& range = *arrival.range;
  if (range.serial != arrival.serial || range.life != Life::live) return true;
  VTensor& part = range.parts[arrival.index];
  if (part.state == State::leaving) stay(range, arrival.index);
  if (part.state != State::absent) return true;
  ChunkId chunk = kNone;
  Status status = take_free(ChunkPool::Take::newest, &chunk);
  if (status.code == Code::out_of_budget) return false;
  if (status.ok()) {
    part.write_wanted = false;
    part.planned = true;
    status = arrive(range, arrival.index, chunk);
    if (!status.ok()) pool_.release(chunk);
  }
  status.ok() ? ++counters_.prefetches : ++counters_.failures;
  return true;
}

// The same on ordered devices, where vTensors side by side are mapped in one call; they leave the line here.
bool Engine::pump_run() {
  const Arrival head = arrivals_.front();
  Range& range = *head.range;
  const bool alive = range.serial == head.serial && range.life == Life::live;
  std::vector<ChunkId> chunks;
  Status status;
  while (!arrivals_.empty()) {
    const Arrival& next = arrivals_.front();
    const auto index = head.index + static_cast<std::uint32_t>(chunks.size());
    if (next.range != &range || next.serial != head.serial || next.index != index) break;
    if (!alive || range.parts[index].state != State::absent) {
      arrivals_.pop_front();
      break;
    }
    ChunkId chunk = kNone;
    status = take_former(range, index, true, &chunk) ? kOk : take_free(ChunkPool::Take::oldest, &chunk);
    if (!status.ok()) break;
    chunks.push_back(chunk);
    arrivals_.pop_front();
  }
  const bool room = status.code != Code::out_of_budget;
  if (!status.ok() && room) {
    ++counters_.failures;
    arrivals_.pop_front();
  }
  if (chunks.empty()) return room;
  status = lead_to(range, head.index, chunks);
  for (std::uint32_t i = 0; i < chunks.size(); ++i) {
    VTensor& part = range.parts[head.index + i];
    part.write_wanted = false;
    part.planned = true;
    const Status arrived = status.ok() ? arrive(range, head.index + i, chunks[i]) : status;
    if (!arrived.ok()) give_back(chunks[i]);
    arrived.ok() ? ++counters_.prefetches : ++counters_.failures;
  }
  return room;
}

void Engine::run_pump() {
  Lock lock(mutex_);
  while (!pump_stops_) {
    const auto ticket = copies_.oldest(Lane::out);
    if (arrivals_.empty() || taking_ > 0 || !ticket) {
      pump_wakes_.wait(lock);
    } else {
      wait_for(lock, *ticket, false);
    }
    if (pump_stops_) return;
    reap();
    pump();
  }
}

void Engine::stop_pump(Lock& lock) {
  arrivals_.clear();
  arrivals_wait_.store(false, std::memory_order_relaxed);
  pump_stops_ = true;
  if (pump_ == nullptr) return;
  pump_wakes_.notify_one();
  lock.unlock();
  pump_->join();
  lock.lock();
  delete pump_;
  pump_ = nullptr;
}

// In a forked child: the thread does not exist there, and what it waited on is not defined.
void Engine::forget_pump() {
  pump_ = nullptr;
  pump_stops_ = true;
  arrivals_.clear();
  arrivals_wait_.store(false, std::memory_order_relaxed);
  new (&pump_wakes_) std::condition_variable;
}

}  // namespace vt
