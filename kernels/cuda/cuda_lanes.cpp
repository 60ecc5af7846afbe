#include "cuda/cuda_lanes.h"

#include <algorithm>

namespace vt {

namespace {
constexpr std::size_t kMostLanes = static_cast<std::size_t>(Ticket::Lane::none);
}  // namespace

CudaLanes::CudaLanes(const CudaContext& context) : context_(context), api_(context.api), lines_(2) {
  const Current current(context_);
  for (Line& line : lines_) {
    if (const CUresult result = api_.cuStreamCreate_(&line.stream, CU_STREAM_NON_BLOCKING); result != CUDA_SUCCESS) {
      throw InvalidUse("no stream for copies can be had: " + api_.describe(result));
    }
  }
}

CudaLanes::~CudaLanes() {
  const Current current(context_);
  for (Line& line : lines_) {
    for (const Pending& pending : line.pending) {
      events_.push_back(pending.end);
      if (pending.begin != nullptr) events_.push_back(pending.begin);
    }
  }
  events_.insert(events_.end(), stamps_.begin(), stamps_.end());
  for (const CUevent event : events_) (void)api_.cuEventDestroy_(event);
  (void)api_.cuStreamDestroy_(lines_[0].stream);
  (void)api_.cuStreamDestroy_(lines_[1].stream);
}

Status CudaLanes::keep_events(std::size_t count) {
  while (events_.size() < count) {
    CUevent made = nullptr;
    const Status status = cuda_status("cuEventCreate", api_.cuEventCreate_(&made, CU_EVENT_DEFAULT));
    if (!status.ok()) return status;
    events_.push_back(made);
  }
  return kOk;
}

Status CudaLanes::event(CUevent* event) {
  const Status status = keep_events(1);
  if (!status.ok()) return status;
  *event = events_.back();
  events_.pop_back();
  return kOk;
}

// An event that ends what the lane was asked for so far. Pre: the context is current, mutex_ is held.
Status CudaLanes::record(Ticket::Lane lane, CUevent* end) {
  Status status = event(end);
  if (!status.ok()) return status;
  status = cuda_status("cuEventRecord", api_.cuEventRecord_(*end, line(lane).stream));
  if (!status.ok()) events_.push_back(*end);
  return status;
}

// The same with a ticket.
Status CudaLanes::issue(Ticket::Lane lane, CUevent begin, Ticket* ticket) {
  Line& line = this->line(lane);
  CUevent end = nullptr;
  const Status status = record(lane, &end);
  if (!status.ok()) return status;
  line.pending.push_back({++line.issued, begin, end});
  *ticket = {lane, line.issued};
  return kOk;
}

Status CudaLanes::copy(Ticket::Lane lane, Address home, void* memory, Bytes bytes, Ticket* ticket) {
  const Current current(context_);
  std::lock_guard lock(mutex_);
  const auto device = static_cast<CUdeviceptr>(home);
  const CUstream stream = line(lane).stream;
  CUevent begin = nullptr;
  Status status = keep_events(2);
  if (status.ok()) status = event(&begin);
  if (status.ok()) status = cuda_status("cuEventRecord", api_.cuEventRecord_(begin, stream));
  if (status.ok()) {
    status = lane == Ticket::Lane::out ? cuda_status("copy_out", api_.cuMemcpyDtoHAsync_(memory, device, bytes, stream))
                                       : cuda_status("copy_in", api_.cuMemcpyHtoDAsync_(device, memory, bytes, stream));
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

// Sees which tickets are passed, and takes their events back. Pre: the context is current, mutex_ is held.
void CudaLanes::collect(Line& line) {
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

CopyState CudaLanes::poll(Ticket ticket, int* error) {
  const Current current(context_);
  std::lock_guard lock(mutex_);
  Line& line = this->line(ticket.lane);
  if (ticket.number > line.passed) collect(line);
  if (line.broken) {
    if (error != nullptr) *error = 0;
    return CopyState::failed;
  }
  return ticket.number <= line.passed ? CopyState::done : CopyState::pending;
}

void CudaLanes::wait(Ticket ticket) {
  const Current current(context_);
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

LaneTimes CudaLanes::times(Ticket::Lane lane) const {
  std::lock_guard lock(mutex_);
  return {static_cast<std::uint64_t>(lines_[static_cast<std::size_t>(lane)].busy_ms * 1e6), 0};
}

std::size_t CudaLanes::copies() const {
  std::lock_guard lock(mutex_);
  return lines_[0].pending.size() + lines_[1].pending.size();
}

Status CudaLanes::adopt(void* stream, Ticket::Lane* lane) {
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

Status CudaLanes::mark(Ticket::Lane lane, Ticket* ticket) {
  const Current current(context_);
  std::lock_guard lock(mutex_);
  collect(line(lane));
  return issue(lane, nullptr, ticket);
}

Status CudaLanes::order(Ticket::Lane later, Ticket earlier) {
  const Current current(context_);
  std::lock_guard lock(mutex_);
  Line& before = line(earlier.lane);
  if (earlier.number == 0 || earlier.number > before.issued) return illegal("order");
  if (earlier.number <= before.passed) return kOk;
  const CUevent end = before.pending[earlier.number - before.pending.front().number].end;
  return cuda_status("cuStreamWaitEvent", api_.cuStreamWaitEvent_(line(later).stream, end, 0));
}

Status CudaLanes::stamp(Ticket::Lane lane) {
  const Current current(context_);
  std::lock_guard lock(mutex_);
  CUevent moment = nullptr;
  const Status status = record(lane, &moment);
  if (status.ok()) stamps_.push_back(moment);
  return status;
}

Status CudaLanes::read_stamps(std::vector<std::uint64_t>* passed) {
  const Current current(context_);
  std::lock_guard lock(mutex_);
  Status status = kOk;
  for (const CUevent moment : stamps_) {
    float ms = 0;
    if (status.ok()) status = cuda_status("cuEventElapsedTime", api_.cuEventElapsedTime_(&ms, stamps_.front(), moment));
    passed->push_back(static_cast<std::uint64_t>(std::max(ms, 0.0F) * 1e6));
  }
  events_.insert(events_.end(), stamps_.begin(), stamps_.end());
  stamps_.clear();
  return status;
}

}  // namespace vt
