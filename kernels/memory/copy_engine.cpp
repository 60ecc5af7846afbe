#include "memory/copy_engine.h"

#include <algorithm>

namespace vt {

Status CopyEngine::ask(Lane lane, ChunkId chunk, const HostPlace& place, Bytes bytes, Ticket* ticket) {
  return lane == Lane::out ? driver_.copy_out(chunk, place, bytes, ticket) : driver_.copy_in(place, chunk, bytes, ticket);
}

Status CopyEngine::start(Lane lane, Range& range, std::uint32_t index, const HostPlace& place, Bytes bytes) {
  VTensor& part = range.parts[index];
  const Status status = ask(lane, part.chunk, place, bytes, &part.ticket);
  if (!status.ok()) return status;
  queues_[index_of(lane)].push_back({part.ticket, &range, index, bytes});
  if (driver_.hands() == Hands::between) wants_hands_.store(true, std::memory_order_relaxed);
  return kOk;
}

Status CopyEngine::start_in_order(Lane lane, Address at, ChunkId chunk, const HostPlace& place, Bytes bytes, Ticket* ticket) {
  const Status status = driver_.ordered()->copy_at(lane, at, chunk, place, bytes, ticket);
  if (status.ok()) queues_[index_of(lane)].push_back({*ticket, nullptr, 0, bytes});
  return status;
}

std::optional<CopyJob> CopyEngine::collect(Lane lane) {
  auto& jobs = queues_[index_of(lane)];
  if (jobs.empty()) return std::nullopt;
  CopyJob job = jobs.front();
  job.state = driver_.poll(job.ticket, &job.error);
  if (job.state == CopyState::pending) return std::nullopt;
  driver_.retire(job.ticket);
  jobs.pop_front();
  if (job.state == CopyState::done) {
    moved_[index_of(lane)] += job.bytes;
    ++done_[index_of(lane)];
  }
  return job;
}

CopyState CopyEngine::cancel(VTensor& part) {
  const CopyState state = driver_.cancel(part.ticket);
  driver_.retire(part.ticket);
  auto& jobs = queues_[index_of(part.ticket.lane)];
  const auto found = std::find_if(jobs.begin(), jobs.end(),
                                  [&](const CopyJob& job) { return job.ticket.number == part.ticket.number; });
  if (state == CopyState::done) moved_[index_of(part.ticket.lane)] += found->bytes;
  jobs.erase(found);
  part.ticket = {};
  return state;
}

std::optional<Ticket> CopyEngine::oldest(Lane lane) const {
  if (queue(lane).empty()) return std::nullopt;
  return queue(lane).front().ticket;
}

}  // namespace vt
