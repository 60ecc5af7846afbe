// What CUDA answered, as a status.
//
// Covers: which errors mean that the device is lost. Leaves: what is asked (cuda_api.h).
#pragma once

#include <cuda.h>

#include "base/types.h"

namespace vt {

inline Status cuda_status(const char* call, CUresult result) {
  // When the process ends the driver goes before the last tensors do: then nothing is left to be kept in order.
  if (result == CUDA_SUCCESS || result == CUDA_ERROR_DEINITIALIZED) return kOk;
  return {Code::refused, call, static_cast<int>(result)};
}

// The same of calls by which nothing is had: copies, order, giving back. Where a kernel failed (an illegal access, an assertion)
// CUDA answers every call with its error from then on, and torch raises it at its next one. There is nothing to copy or to order
// on a device that is lost, and to stop the program here would keep it from that error and its traceback. Said once.
Status status_if_not_lost(const char* call, CUresult result);

}  // namespace vt
