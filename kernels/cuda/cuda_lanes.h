// The lanes of a CUDA device: copies, tickets, streams and the order of their work, told by events.
//
// Covers: what driver_ordered.h says of lanes and tickets, for memory that the caller answers for.
// Copies are gathered: what follows side by side is asked of the device as one, when something else is asked of the lane. Asking
// for a copy takes the host some 20 us, as long as the link takes for 1 MiB; a step of GPT-2 on an H100 had 1,900 of them. And a
// stream has room for so many things that are still to be done, events included: who asks for one more stands until one is, and
// the device may have nothing to compute meanwhile (kernels/cuda/DESIGN.md). So few copies are timed, which takes one more
// event, and the others are taken to go as fast as those that were.
//
// Leaves: which memory (driver_cuda.h). Thread-safety: all calls may come from any thread.
#pragma once

#include <deque>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "cuda/cuda_device.h"
#include "device/driver.h"

namespace vt {

class CudaLanes {
 public:
  // Throws InvalidUse if there are no streams to be had. `context` outlives it.
  explicit CudaLanes(const CudaContext& context);
  ~CudaLanes();
  CudaLanes(const CudaLanes&) = delete;
  CudaLanes& operator=(const CudaLanes&) = delete;

  // From `at` to `memory` on the lane out, back on the lane in.
  Status copy(Lane lane, Address at, const HostPlace& place, Bytes bytes, Ticket* ticket);
  // What was gathered begins.
  void go();
  CopyState poll(Ticket ticket, int* error);
  void wait(Ticket ticket);
  LaneTimes times(Lane lane) const;
  std::size_t copies() const;  // tickets of copies that were not seen to be passed
  Status adopt(void* stream, Lane* lane);
  Status mark(Lane lane, Ticket* ticket);
  Status order(Lane later, Ticket earlier);
  Status stamp(Lane lane);
  Status read_stamps(std::vector<std::uint64_t>* passed);

 private:
  // To be used again.
  struct Events {
    unsigned flags;
    std::vector<CUevent> at_hand;
  };
  struct Pending {
    std::uint64_t number;  // of the newest ticket it ends
    Bytes copied;          // 0: no copy
    CUevent begin, end;    // begin: of a copy that is timed; else nullptr
  };
  // Copies that were not asked of the device yet, side by side.
  struct Gathered {
    Address at = 0;
    char* memory = nullptr;
    Bytes bytes = 0;
    std::uint32_t piece = 0;  // CUDA refuses a copy that is not within one piece of pinned memory
  };
  // A stream, and the events of its tickets that were not seen to be passed.
  struct Line {
    CUstream stream = nullptr;
    std::uint64_t issued = 0, passed = 0;
    std::deque<Pending> pending;
    Gathered gathered;  // up to `issued`
    std::uint64_t copies = 0;
    double busy_ms = 0;
    double timed_ms = 0, timed_bytes = 0;  // of copies that were timed
    bool broken = false;
  };

  Line& line(Lane lane) { return lines_[static_cast<std::size_t>(lane)]; }
  Status keep(Events& events, std::size_t count);  // so many are at hand
  CUstream recordable(Lane lane);
  Status record(Lane lane, Events& events, CUevent* event);
  Status end(Lane lane, Bytes copied, CUevent begin, std::uint64_t number);
  Status start(Lane lane, const Gathered& copy, CUevent* begin);
  void go(Lane lane);
  void collect(Line& line);
  void forget(const Pending& pending);
  CUevent end_of(Ticket ticket);

  const CudaContext& context_;
  const CudaApi& api_;
  mutable std::mutex mutex_;
  std::deque<Line> lines_;         // by lane; references stay valid
  std::unordered_map<void*, Lane> adopted_;
  std::vector<CUevent> stamps_;
  Events timed_{CU_EVENT_DEFAULT, {}}, untimed_{CU_EVENT_DISABLE_TIMING, {}};
};

}  // namespace vt
