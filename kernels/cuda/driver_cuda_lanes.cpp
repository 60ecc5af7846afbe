// The lanes of the CUDA driver: copies, tickets, streams. See driver_cuda.h.

#include <algorithm>

#include "cuda/driver_cuda.h"

namespace vt {

namespace {
constexpr std::size_t kMostLanes = static_cast<std::size_t>(Ticket::Lane::none);
Status illegal(const char* call) { return {Code::illegal, call, 0}; }
}  // namespace

Status CudaDriver::keep_events(std::size_t count) {
  while (events_.size() < count) {
    CUevent made = nullptr;
    const Status status = check("cuEventCreate", api_.cuEventCreate_(&made, CU_EVENT_DEFAULT));
    if (!status.ok()) return status;
    events_.push_back(made);
  }
  return kOk;
}

Status CudaDriver::event(CUevent* event) {
  const Status status = keep_events(1);
  if (!status.ok()) return status;
  *event = events_.back();
  events_.pop_back();
  return kOk;
}

// An event that ends what the lane was asked for so far. Pre: the context is current, mutex_ is held.
Status CudaDriver::record(Ticket::Lane lane, CUevent* end) {
  Status status = event(end);
  if (!status.ok()) return status;
  status = check("cuEventRecord", api_.cuEventRecord_(*end, line(lane).stream));
  if (!status.ok()) events_.push_back(*end);
  return status;
}

// The same with a ticket.
Status CudaDriver::issue(Ticket::Lane lane, CUevent begin, Ticket* ticket) {
  Line& line = this->line(lane);
  CUevent end = nullptr;
  const Status status = record(lane, &end);
  if (!status.ok()) return status;
  line.pending.push_back({++line.issued, begin, end});
  *ticket = {lane, line.issued};
  return kOk;
}

Status CudaDriver::copy(Ticket::Lane lane, ChunkId chunk, const HostPlace& place, Bytes bytes, Ticket* ticket) {
  const char* call = lane == Ticket::Lane::out ? "copy_out" : "copy_in";
  const Current current(*this);
  std::lock_guard lock(mutex_);
  if (chunk >= chunks_.size() || !chunks_[chunk].exists || place.memory == nullptr || bytes == 0 || bytes > chunk_bytes_) {
    return illegal(call);
  }
  const CUdeviceptr home = static_cast<CUdeviceptr>(chunks_[chunk].home);
  const CUstream stream = line(lane).stream;
  CUevent begin = nullptr;
  Status status = keep_events(2);
  if (status.ok()) status = event(&begin);
  if (status.ok()) status = check("cuEventRecord", api_.cuEventRecord_(begin, stream));
  if (status.ok()) {
    status = check(call, lane == Ticket::Lane::out ? api_.cuMemcpyDtoHAsync_(place.memory, home, bytes, stream)
                                                   : api_.cuMemcpyHtoDAsync_(home, place.memory, bytes, stream));
  }
  if (!status.ok()) {
    if (begin != nullptr) events_.push_back(begin);
    return status;
  }
  for (int attempt = 0; attempt < 3; ++attempt) {
    status = issue(lane, begin, ticket);
    if (status.ok()) return kOk;
  }
  fatal("a copy that was asked for cannot be followed: " + describe(status));
}

Status CudaDriver::copy_out(ChunkId from, const HostPlace& to, Bytes bytes, Ticket* ticket) {
  return copy(Ticket::Lane::out, from, to, bytes, ticket);
}

Status CudaDriver::copy_in(const HostPlace& from, ChunkId to, Bytes bytes, Ticket* ticket) {
  return copy(Ticket::Lane::in, to, from, bytes, ticket);
}

// Sees which tickets are passed, and takes their events back. Pre: the context is current, mutex_ is held.
void CudaDriver::collect(Line& line) {
  while (!line.pending.empty()) {
    const Pending& oldest = line.pending.front();
    const CUresult result = api_.cuEventQuery_(oldest.end);
    const bool captured = result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED || result == CUDA_ERROR_CAPTURED_EVENT;
    if (result == CUDA_ERROR_NOT_READY || captured) return;
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_DEINITIALIZED) {
      line.broken = true;
      return;
    }
    if (oldest.begin != nullptr) {
      float ms = 0;
      if (api_.cuEventElapsedTime_(&ms, oldest.begin, oldest.end) == CUDA_SUCCESS) line.busy_ms += static_cast<double>(ms);
      events_.push_back(oldest.begin);
    }
    events_.push_back(oldest.end);
    line.passed = oldest.number;
    line.pending.pop_front();
  }
}

CopyState CudaDriver::poll(Ticket ticket, int* error) {
  const Current current(*this);
  std::lock_guard lock(mutex_);
  Line& line = this->line(ticket.lane);
  if (ticket.number > line.passed) collect(line);
  if (line.broken) {
    if (error != nullptr) *error = 0;
    return CopyState::failed;
  }
  return ticket.number <= line.passed ? CopyState::done : CopyState::pending;
}

void CudaDriver::wait(Ticket ticket) {
  const Current current(*this);
  for (;;) {
    CUevent end = nullptr;
    {
      std::lock_guard lock(mutex_);
      Line& line = this->line(ticket.lane);
      collect(line);
      if (ticket.number <= line.passed || line.broken || line.pending.empty()) return;
      end = line.pending[ticket.number - line.pending.front().number].end;
    }
    // Another thread may see the event first and use it again: then this waits for something later, and looks once more.
    (void)api_.cuEventSynchronize_(end);
  }
}

LaneTimes CudaDriver::times(Ticket::Lane lane) const {
  std::lock_guard lock(mutex_);
  return {static_cast<std::uint64_t>(lines_[static_cast<std::size_t>(lane)].busy_ms * 1e6), 0};
}

Status CudaDriver::adopt(void* stream, Ticket::Lane* lane) {
  std::lock_guard lock(mutex_);
  const auto found = adopted_.find(stream);
  if (found != adopted_.end()) {
    *lane = found->second;
    return kOk;
  }
  if (lines_.size() >= kMostLanes) return {Code::failed, "adopt", 0};
  *lane = adopted_[stream] = static_cast<Ticket::Lane>(lines_.size());
  lines_.emplace_back().stream = static_cast<CUstream>(stream);
  return kOk;
}

Status CudaDriver::mark(Ticket::Lane lane, Ticket* ticket) {
  const Current current(*this);
  std::lock_guard lock(mutex_);
  collect(line(lane));
  return issue(lane, nullptr, ticket);
}

Status CudaDriver::order(Ticket::Lane later, Ticket earlier) {
  const Current current(*this);
  std::lock_guard lock(mutex_);
  Line& before = line(earlier.lane);
  if (earlier.number == 0 || earlier.number > before.issued) return illegal("order");
  if (earlier.number <= before.passed) return kOk;
  const CUevent end = before.pending[earlier.number - before.pending.front().number].end;
  return check("cuStreamWaitEvent", api_.cuStreamWaitEvent_(line(later).stream, end, 0));
}

Status CudaDriver::stamp(Ticket::Lane lane) {
  const Current current(*this);
  std::lock_guard lock(mutex_);
  CUevent moment = nullptr;
  const Status status = record(lane, &moment);
  if (status.ok()) stamps_.push_back(moment);
  return status;
}

Status CudaDriver::read_stamps(std::vector<std::uint64_t>* passed) {
  const Current current(*this);
  std::lock_guard lock(mutex_);
  Status status = kOk;
  for (const CUevent moment : stamps_) {
    float ms = 0;
    if (status.ok()) status = check("cuEventElapsedTime", api_.cuEventElapsedTime_(&ms, stamps_.front(), moment));
    passed->push_back(static_cast<std::uint64_t>(std::max(ms, 0.0F) * 1e6));
  }
  events_.insert(events_.end(), stamps_.begin(), stamps_.end());
  stamps_.clear();
  return status;
}

}  // namespace vt
