#include "cuda/cuda_status.h"

#include <atomic>
#include <cstdio>

namespace vt {

namespace {
bool is_lost(CUresult result) noexcept {
  switch (result) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED: return true;
    default: return false;
  }
}
}  // namespace

Status status_if_not_lost(const char* call, CUresult result) {
  if (!is_lost(result)) return cuda_status(call, result);
  static std::atomic_flag told;
  if (!told.test_and_set()) {
    std::fprintf(stderr,
                 "vtensor: this process has lost the GPU (CUDA error %d): a kernel failed, or somebody reset the device. The "
                 "error that torch raises next says more.\n",
                 static_cast<int>(result));
  }
  return kOk;
}

}  // namespace vt
