#include "cuda/cuda_lanes.h"

#include <algorithm>
#include <utility>

namespace vt {

namespace {
constexpr std::size_t kMostLanes = static_cast<std::size_t>(Lane::none);
constexpr unsigned kSeldom = 4;  // marks, until the device is asked which it passed: that takes the host a microsecond
constexpr std::uint64_t kTimed = 7;  // copies, of which one is timed; few steps have a number of them that this divides
constexpr Bytes kMostAtOnce = Bytes{16} << 20;  // takes the link 0.3 ms; more would be free no sooner, and is no faster
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
    for (const Pending& pending : line.pending) forget(pending);
  }
  for (const auto* events : {&timed_.at_hand, &untimed_.at_hand, &stamps_}) {
    for (const CUevent event : *events) (void)api_.cuEventDestroy_(event);
  }
  (void)api_.cuStreamDestroy_(lines_[0].stream);
  (void)api_.cuStreamDestroy_(lines_[1].stream);
}

Status CudaLanes::keep(Events& events, std::size_t count) {
  while (events.at_hand.size() < count) {
    CUevent made = nullptr;
    const Status status = status_if_not_lost("cuEventCreate", api_.cuEventCreate_(&made, events.flags));
    if (!status.ok()) return status;
    events.at_hand.push_back(made);
  }
  return kOk;
}

// Its events are to be had again.
void CudaLanes::forget(const Pending& pending) {
  (pending.begin != nullptr ? timed_ : untimed_).at_hand.push_back(pending.end);
  if (pending.begin != nullptr) timed_.at_hand.push_back(pending.begin);
}

// The lane's stream. While a graph is captured on it, an event there would be the graph's, and what is asked of it is not done
// now: then any other, as what it was asked for before has a ticket (StreamOrder::mark_streams).
CUstream CudaLanes::recordable(Lane lane) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUstream stream = line(lane).stream;
  const bool told = lane >= Lane::first_stream && api_.cuStreamIsCapturing_(stream, &status) == CUDA_SUCCESS;
  return told && status != CU_STREAM_CAPTURE_STATUS_NONE ? lines_[0].stream : stream;
}

// An event that ends what the lane was asked for so far. Pre: the context is current, mutex_ is held.
Status CudaLanes::record(Lane lane, Events& events, CUevent* end) {
  Status status = keep(events, 1);
  if (!status.ok()) return status;
  *end = events.at_hand.back();
  status = status_if_not_lost("cuEventRecord", api_.cuEventRecord_(*end, recordable(lane)));
  if (status.ok()) events.at_hand.pop_back();
  return status;
}

// The same, for the tickets up to this one.
Status CudaLanes::end(Lane lane, Bytes copied, CUevent begin, std::uint64_t number) {
  CUevent ended = nullptr;
  const Status status = record(lane, begin != nullptr ? timed_ : untimed_, &ended);
  if (status.ok()) line(lane).pending.push_back({number, copied, begin, ended});
  return status;
}

Status CudaLanes::copy(Lane lane, Address at, const HostPlace& place, Bytes bytes, Ticket* ticket) {
  const Current current(context_);
  std::lock_guard lock(mutex_);
  Gathered& gathered = line(lane).gathered;
  const bool follows = gathered.bytes > 0 && gathered.piece != 0 && gathered.piece == place.piece &&
                       gathered.at + gathered.bytes == at && gathered.memory + gathered.bytes == place.memory;
  if (!follows || gathered.bytes + bytes > kMostAtOnce) {
    go(lane);
    Status status = keep(timed_, 2);
    if (status.ok()) status = keep(untimed_, 1);
    if (!status.ok()) return status;
    gathered = {at, static_cast<char*>(place.memory), 0, place.piece};
  }
  gathered.bytes += bytes;
  *ticket = {lane, ++line(lane).issued};
  return kOk;
}

Status CudaLanes::start(Lane lane, const Gathered& copy, CUevent* begin) {
  const auto device = static_cast<CUdeviceptr>(copy.at);
  const CUstream stream = line(lane).stream;
  Status status = line(lane).copies % kTimed == 0 ? record(lane, timed_, begin) : kOk;
  if (!status.ok()) return status;
  status = lane == Lane::out
               ? status_if_not_lost("copy_out", api_.cuMemcpyDtoHAsync_(copy.memory, device, copy.bytes, stream))
               : status_if_not_lost("copy_in", api_.cuMemcpyHtoDAsync_(device, copy.memory, copy.bytes, stream));
  if (!status.ok() && *begin != nullptr) timed_.at_hand.push_back(std::exchange(*begin, nullptr));
  return status;
}

// Pre: the context is current, mutex_ is held. Stops the program if the device takes no copy: its context is lost, and whoever
// was told of the copy may have given the memory away.
void CudaLanes::go(Lane lane) {
  const Gathered copy = std::exchange(line(lane).gathered, {});
  if (copy.bytes == 0) return;
  CUevent begin = nullptr;
  const auto thrice = [](auto call) {
    Status status = call();
    for (int again = 0; again < 2 && !status.ok(); ++again) status = call();
    if (!status.ok()) fatal("a copy cannot be asked for and followed: " + describe(status));
  };
  thrice([&] { return start(lane, copy, &begin); });
  thrice([&] { return end(lane, copy.bytes, begin, line(lane).issued); });
  ++line(lane).copies;
}

void CudaLanes::go() {
  const Current current(context_);
  std::lock_guard lock(mutex_);
  go(Lane::out);
  go(Lane::in);
}

// Sees which tickets are passed, and takes their events back. Pre: the context is current, mutex_ is held.
void CudaLanes::collect(Line& line) {
  while (!line.pending.empty()) {
    const Pending& oldest = line.pending.front();
    const CUresult result = api_.cuEventQuery_(oldest.end);
    const bool captured = result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED || result == CUDA_ERROR_CAPTURED_EVENT;
    if (result == CUDA_ERROR_NOT_READY || captured) return;
    if (!status_if_not_lost("cuEventQuery", result).ok()) {
      line.broken = true;
      return;
    }
    float ms = 0;
    if (oldest.begin != nullptr && api_.cuEventElapsedTime_(&ms, oldest.begin, oldest.end) == CUDA_SUCCESS) {
      line.timed_ms += static_cast<double>(ms);
      line.timed_bytes += static_cast<double>(oldest.copied);
    }
    if (line.timed_bytes > 0) line.busy_ms += line.timed_ms / line.timed_bytes * static_cast<double>(oldest.copied);
    forget(oldest);
    line.passed = oldest.number;
    line.pending.pop_front();
  }
}

// Pre: it was asked of the device, and not seen to be passed.
CUevent CudaLanes::end_of(Ticket ticket) {
  const auto& pending = line(ticket.lane).pending;
  const auto ends_it = [](const Pending& one, std::uint64_t number) { return one.number < number; };
  return std::lower_bound(pending.begin(), pending.end(), ticket.number, ends_it)->end;
}

CopyState CudaLanes::poll(Ticket ticket, int* error) {
  std::lock_guard lock(mutex_);
  Line& line = this->line(ticket.lane);
  if (ticket.number > line.passed) {
    const Current current(context_);
    if (line.pending.empty()) go(ticket.lane);
    collect(line);
  }
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
      go(ticket.lane);
      collect(line);
      if (ticket.number <= line.passed || line.broken || line.pending.empty()) return;
      end = end_of(ticket);
    }
    // Another thread may see the event first and use it again: then this waits for something later, and looks once more.
    (void)api_.cuEventSynchronize_(end);
  }
}

LaneTimes CudaLanes::times(Lane lane) const {
  std::lock_guard lock(mutex_);
  return {static_cast<std::uint64_t>(lines_[static_cast<std::size_t>(lane)].busy_ms * 1e6), 0};
}

std::size_t CudaLanes::copies() const {
  std::lock_guard lock(mutex_);
  return lines_[0].issued - lines_[0].passed + lines_[1].issued - lines_[1].passed;
}

Status CudaLanes::adopt(void* stream, Lane* lane) {
  std::lock_guard lock(mutex_);
  const auto found = adopted_.find(stream);
  if (found != adopted_.end()) {
    *lane = found->second;
    return kOk;
  }
  if (lines_.size() >= kMostLanes) return {Code::failed, "adopt", 0};
  *lane = adopted_[stream] = static_cast<Lane>(lines_.size());
  lines_.emplace_back().stream = static_cast<CUstream>(stream);
  return kOk;
}

Status CudaLanes::mark(Lane lane, Ticket* ticket) {
  const Current current(context_);
  std::lock_guard lock(mutex_);
  Line& line = this->line(lane);
  go(lane);
  if (line.issued % kSeldom == 0) collect(line);
  const Status status = end(lane, 0, nullptr, line.issued + 1);
  if (status.ok()) *ticket = {lane, ++line.issued};
  return status;
}

Status CudaLanes::order(Lane later, Ticket earlier) {
  const Current current(context_);
  std::lock_guard lock(mutex_);
  Line& before = line(earlier.lane);
  if (earlier.number == 0 || earlier.number > before.issued) return illegal("order");
  if (earlier.number <= before.passed) return kOk;
  go(earlier.lane);  // not `later`: what was gathered there comes after it, too, and nothing that was asked for can wait for that
  return status_if_not_lost("cuStreamWaitEvent", api_.cuStreamWaitEvent_(line(later).stream, end_of(earlier), 0));
}

Status CudaLanes::stamp(Lane lane) {
  const Current current(context_);
  std::lock_guard lock(mutex_);
  CUevent moment = nullptr;
  const Status status = record(lane, timed_, &moment);
  if (status.ok()) stamps_.push_back(moment);
  return status;
}

Status CudaLanes::read_stamps(std::vector<std::uint64_t>* passed) {
  const Current current(context_);
  std::lock_guard lock(mutex_);
  Status status = kOk;
  for (const CUevent moment : stamps_) {
    float ms = 0;
    if (status.ok()) status = status_if_not_lost("cuEventElapsedTime", api_.cuEventElapsedTime_(&ms, stamps_.front(), moment));
    passed->push_back(static_cast<std::uint64_t>(std::max(ms, 0.0F) * 1e6));
  }
  timed_.at_hand.insert(timed_.at_hand.end(), stamps_.begin(), stamps_.end());
  stamps_.clear();
  return status;
}

}  // namespace vt
