#include "engine/arrivals.h"

#include <algorithm>
#include <system_error>

namespace vt {

void Arrivals::move(std::span<const PlannedMove> out, std::span<const PlannedMove> in) {
  supply_.begin();
  for (const PlannedMove& move : out) leave(move);
  for (const PlannedMove& move : in) {
    for (std::uint32_t i = move.first; i < std::min(move.last, move.range->chunks); ++i) {
      line_.push_back({move.range, move.serial, i});
    }
  }
  pump();
  copies_.go();
  wake_pump();
}

void Arrivals::leave(const PlannedMove& move) {
  Range& range = *move.range;
  if (!move.finds() || range.exported || !moves_.may_leave(range)) return;
  for (std::uint32_t i = move.first; i < std::min(move.last, range.chunks); ++i) {
    if (range.parts[i].state != State::resident || range.parts[i].pins != 0) continue;
    bool pinned = false;
    const Status status = eviction_.leave(range, i, &pinned);
    ground_.counters.failures += !status.ok();
    if (pinned || !status.ok()) return;
    ground_.press();
  }
}

void Arrivals::start() {
  while (!line_.empty() && !demand_.any() && pump_run()) {
  }
  copies_.go();
  note_line();
}

// What is first in the line, and what of the same tensor stands right behind it: side by side it is mapped by one call. False if
// there is no chunk now.
bool Arrivals::pump_run() {
  const Arrival head = line_.front();
  Range& range = *head.range;
  std::vector<ChunkId> chunks;
  const Status status = take_run(head, &chunks);
  const bool room = status.code != Code::out_of_budget;
  if (!status.ok() && room) {
    ++ground_.counters.failures;
    line_.pop_front();
  }
  if (chunks.empty()) return room;
  const Status ready = moves_.before_arrivals(range, head.index, chunks);
  range.last_use.store(ground_.now(), std::memory_order_relaxed);  // it is wanted soon: who needs room looks elsewhere first
  for (std::uint32_t i = 0; i < chunks.size(); ++i) {
    VTensor& part = range.parts[head.index + i];
    part.write_wanted = false;
    part.planned = true;
    const Status arrived = ready.ok() ? moves_.arrive(range, head.index + i, chunks[i]) : ready;
    if (!arrived.ok()) {
      part.planned = false;
      supply_.give_back(chunks[i]);
    }
    arrived.ok() ? ++ground_.counters.arrivals : ++ground_.counters.failures;
  }
  return room;
}

// Chunks for them; they leave the line here, and so does one that needs none. Not ok: why the next has none.
Status Arrivals::take_run(const Arrival& head, std::vector<ChunkId>* chunks) {
  Range& range = *head.range;
  const bool alive = is_still(range, head.serial);
  while (!line_.empty()) {
    const Arrival& next = line_.front();
    const auto index = head.index + static_cast<std::uint32_t>(chunks->size());
    if (next.range != &range || next.serial != head.serial || next.index != index) break;
    if (alive && range.parts[index].state == State::leaving) moves_.stay(range, index);
    if (!alive || range.parts[index].state != State::absent) {
      line_.pop_front();
      break;
    }
    ChunkId chunk = kNone;
    const Status status = supply_.take_free(range, index, &chunk);
    if (!status.ok()) return status;
    chunks->push_back(chunk);
    line_.pop_front();
  }
  return kOk;
}

void Arrivals::lend_hands(Lock& lock) {
  if (copies_.take_wish()) ground_.let_go(lock, [&] { ground_.driver.lend_hands(); });
}

void Arrivals::forget() {
  line_.clear();
  note_line();
}

void Arrivals::wake_pump() {
  if (line_.empty() || !moves_.needs_pump()) return;
  if (pump_ == nullptr && !stops_) {
    try {
      pump_ = new std::thread(&Arrivals::run_pump, this);
    } catch (const std::system_error&) {
      return;  // no thread to be had now: what waits is started by the rows that follow
    }
  }
  demand_.wake();
}

void Arrivals::run_pump() {
  Lock lock(mutex_);
  while (!stops_) {
    moves_.reap();
    pump();  // before it waits: others may have seen the copy end that it would wait for
    const auto ticket = copies_.oldest(Lane::out);
    if (line_.empty() || demand_.any() || !ticket) {
      demand_.wait(lock, !line_.empty());
    } else {
      moves_.wait_for(lock, *ticket, false);
    }
  }
}

void Arrivals::stop(Lock& lock) {
  forget();
  stops_ = true;
  if (pump_ == nullptr) return;
  demand_.wake();
  lock.unlock();
  pump_->join();
  lock.lock();
  delete pump_;
  pump_ = nullptr;
}

void Arrivals::forget_thread() {
  pump_ = nullptr;
  stops_ = true;
  forget();
}

}  // namespace vt
