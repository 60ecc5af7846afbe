// The CUDA driver's functions, found when the program runs: nothing here is linked, and a machine without a GPU loads the rest.
//
// Covers: the functions vtensor needs, by their names in cuda.h, and errors as Status and words.
// Leaves: what they are for (driver_cuda.h). Compiled only where cuda.h is (vtensor/native/library.py).
#pragma once

#include <cuda.h>

#include <span>
#include <string>

#include "base/types.h"

namespace vt {

// One line for each function; cuda.h may rename it to its newest version (cuMemcpyDtoHAsync_v2).
#define VT_CUDA_FUNCTIONS(F)       \
  F(cuInit)                        \
  F(cuGetErrorName)                \
  F(cuDeviceGet)                   \
  F(cuDeviceGetCount)              \
  F(cuDeviceGetName)               \
  F(cuDeviceGetAttribute)          \
  F(cuDeviceCanAccessPeer)         \
  F(cuDevicePrimaryCtxRetain)      \
  F(cuDevicePrimaryCtxRelease)     \
  F(cuCtxGetCurrent)               \
  F(cuCtxPushCurrent)              \
  F(cuCtxPopCurrent)               \
  F(cuCtxSynchronize)              \
  F(cuThreadExchangeStreamCaptureMode) \
  F(cuMemGetAllocationGranularity) \
  F(cuMemAddressReserve)           \
  F(cuMemAddressFree)              \
  F(cuMemCreate)                   \
  F(cuMemRelease)                  \
  F(cuMemRetainAllocationHandle)   \
  F(cuMemMap)                      \
  F(cuMemUnmap)                    \
  F(cuMemSetAccess)                \
  F(cuMemHostRegister)             \
  F(cuMemHostUnregister)           \
  F(cuMemcpyDtoHAsync)             \
  F(cuMemcpyHtoDAsync)             \
  F(cuStreamCreate)                \
  F(cuStreamDestroy)               \
  F(cuStreamWaitEvent)             \
  F(cuStreamIsCapturing)           \
  F(cuEventCreate)                 \
  F(cuEventDestroy)                \
  F(cuEventRecord)                 \
  F(cuEventQuery)                  \
  F(cuEventSynchronize)            \
  F(cuEventElapsedTime)

// CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: drivers know it that are newer than CUDA 12's headers, which
// do not name it. Older ones refuse to answer.
inline constexpr auto kMapsHostMemory = static_cast<CUdevice_attribute>(141);
#if CUDA_VERSION >= 13000
static_assert(kMapsHostMemory == CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
#endif

struct CudaApi {
#define VT_MEMBER(name) decltype(&::name) name##_ = nullptr;
  VT_CUDA_FUNCTIONS(VT_MEMBER)
#undef VT_MEMBER

  // Opens the driver's library, once for the process. Throws InvalidUse that says what is missing.
  // `library`: another one in its place, for tests; nullptr for libcuda.so.1.
  static const CudaApi& load(const char* library = nullptr);

  // "CUDA_ERROR_OUT_OF_MEMORY"
  std::string describe(CUresult result) const;
  // Maps pieces of memory, each of so many bytes, one after another, for these to read and write. Nothing is mapped when it
  // fails.
  CUresult map(CUdeviceptr at, Bytes each, std::span<const CUmemGenericAllocationHandle> handles,
               std::span<const CUmemLocation> users) const;
};

// Memory of a device, and of a node of the host, as cuMemCreate wants it described.
CUmemAllocationProp memory_of(int ordinal);
CUmemAllocationProp memory_of_host(int node);

}  // namespace vt
