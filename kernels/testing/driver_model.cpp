#include "testing/driver_model.h"

#include <algorithm>

namespace vt {

std::uint64_t ModelDriver::reached(Lane lane) const {
  const Line& line = lanes_.at(number(lane));
  return std::max({line.end, line.after, now_});  // nothing is done before it is asked for
}

// Something is about to be asked of the lane.
void ModelDriver::make_room(Lane lane) {
  std::deque<std::uint64_t>& queue = lanes_.at(number(lane)).queue;
  while (!queue.empty() && queue.front() <= now_) queue.pop_front();
  if (costs_.room == 0 || queue.size() < costs_.room) return;
  now_ = queue.front();
  queue.pop_front();
}

void ModelDriver::work(Lane lane, std::uint64_t ns) {
  make_room(lane);
  Line& line = lanes_.at(number(lane));
  line.end = reached(lane) + ns;
  line.busy += ns;
  enter(lane);
}

void ModelDriver::compute(Lane stream, std::uint64_t ns) { work(stream, ns); }

void ModelDriver::join(Lane stream) { now_ = reached(stream); }

Status ModelDriver::reserve(Bytes bytes, Address* base) {
  *base = next_;
  next_ += bytes;
  reservations_.insert(*base);
  return kOk;
}

Status ModelDriver::release(Address base) {
  reservations_.erase(base);
  return kOk;
}

Status ModelDriver::set_capacity(std::size_t chunks) {
  capacity_ = chunks;
  return kOk;
}

Status ModelDriver::create(ChunkId* chunk) {
  if (existing_.size() >= capacity_) return {Code::out_of_budget, "create", 0};
  *chunk = 0;
  while (existing_.contains(*chunk)) ++*chunk;
  existing_.insert(*chunk);
  return kOk;
}

Status ModelDriver::destroy(ChunkId chunk) {
  existing_.erase(chunk);
  return kOk;
}

Status ModelDriver::map_run(Address at, std::span<const ChunkId> chunks) {
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    if (mapped_.contains(at + i * chunk_bytes_) || !existing_.contains(chunks[i])) return illegal("map");
  }
  for (std::size_t i = 0; i < chunks.size(); ++i) mapped_[at + i * chunk_bytes_] = chunks[i];
  now_ += costs_.map + chunks.size() * costs_.piece;
  return kOk;
}

Status ModelDriver::unmap_run(Address at, std::size_t chunks) {
  for (std::size_t i = 0; i < chunks; ++i) {
    if (!mapped_.contains(at + i * chunk_bytes_)) return illegal("unmap");
  }
  for (std::size_t i = 0; i < chunks; ++i) mapped_.erase(at + i * chunk_bytes_);
  now_ += costs_.map + chunks * costs_.piece;
  return kOk;
}

Status ModelDriver::copy_at(Lane lane, Address, ChunkId, const HostPlace&, Bytes bytes, Ticket* ticket) {
  const double speed = lane == Lane::out ? costs_.out_speed : costs_.in_speed;
  now_ += costs_.call;
  work(lane, static_cast<std::uint64_t>(static_cast<double>(bytes) / speed * 1e9));
  return mark(lane, ticket);
}

CopyState ModelDriver::poll(Ticket ticket, int*) {
  now_ += costs_.call;
  return end_of(ticket) <= now_ ? CopyState::done : CopyState::pending;
}

void ModelDriver::wait(Ticket ticket) { now_ = std::max(now_, end_of(ticket)); }

Status ModelDriver::adopt(void* stream, Lane* lane) {
  const auto [entry, fresh] = streams_.try_emplace(stream, static_cast<Lane>(lanes_.size()));
  if (fresh) lanes_.emplace_back();
  *lane = entry->second;
  return kOk;
}

Status ModelDriver::mark(Lane lane, Ticket* ticket) {
  now_ += costs_.call;
  make_room(lane);
  Line& line = lanes_.at(number(lane));
  line.ends.push_back(reached(lane));
  enter(lane);
  *ticket = {lane, line.ends.size()};
  return kOk;
}

Status ModelDriver::order(Lane later, Ticket earlier) {
  now_ += costs_.call;
  make_room(later);
  Line& line = lanes_.at(number(later));
  line.after = std::max(line.after, end_of(earlier));
  enter(later);
  return kOk;
}

Status ModelDriver::stamp(Lane lane) {
  now_ += costs_.call;
  make_room(lane);
  stamps_.push_back(reached(lane));
  enter(lane);
  return kOk;
}

Status ModelDriver::read_stamps(std::vector<std::uint64_t>* passed) {
  for (const std::uint64_t moment : stamps_) passed->push_back(moment - std::min(moment, stamps_.front()));
  stamps_.clear();
  return kOk;
}

}  // namespace vt
