// A CUDA device: what it can do, and its context on the calling thread.
//
// Covers: asking the driver; making the context current for the length of a call.
// Leaves: memory (driver_cuda.h), copies and streams (cuda_lanes.h). Thread-safety: all of it.
#pragma once

#include <string>

#include "cuda/cuda_api.h"
#include "cuda/cuda_status.h"

namespace vt {

// What a GPU is and can do; for `vtensor doctor` and for refusing what cannot work.
struct CudaDevice {
  int ordinal = 0;
  std::string name;
  Bytes granularity = 0;  // smallest chunk
  bool virtual_memory = false;
  bool integrated = false;  // one memory for processor and GPU: moving data out frees nothing
  int host_node = -1;       // whose memory the driver says it can use in place, mapped like its own; -1 for none
};

// Throws InvalidUse if there is no such device. `library`: see CudaApi::load.
CudaDevice probe_cuda(int ordinal, const char* library = nullptr);

// The device's primary context, which is torch's too.
class CudaContext {
 public:
  // Throws InvalidUse if it cannot be had.
  CudaContext(const CudaApi& api, int ordinal);
  ~CudaContext() { (void)api.cuDevicePrimaryCtxRelease_(device); }
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  const CudaApi& api;
  CUdevice device = 0;
  CUcontext handle = nullptr;
};

// The device's context, on the calling thread, while this lives. torch calls from many threads (autograd has one for each
// device), each with a context of its own or none. Nor may a graph that is captured somewhere forbid us to look at our events.
class Current {
 public:
  explicit Current(const CudaContext& context);
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  const CudaApi& api_;
  bool pushed_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

}  // namespace vt
