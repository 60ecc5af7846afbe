#include "cuda/cuda_device.h"

#include <algorithm>

namespace vt {

namespace {
int attribute(const CudaApi& api, CUdevice_attribute what, CUdevice device) {
  int value = 0;
  return api.cuDeviceGetAttribute_(&value, what, device) == CUDA_SUCCESS ? value : 0;
}
}  // namespace

CudaDevice probe_cuda(int ordinal, const char* library) {
  const CudaApi& api = CudaApi::load(library);
  int count = 0;
  if (api.cuDeviceGetCount_(&count) != CUDA_SUCCESS || ordinal < 0 || ordinal >= count) {
    throw InvalidUse("there is no CUDA device " + std::to_string(ordinal) + ": the driver lists " + std::to_string(count));
  }
  CUdevice device = 0;
  CudaDevice found;
  found.ordinal = ordinal;
  char name[256] = {};
  std::size_t granularity = 0;
  const CUmemAllocationProp properties = memory_of(ordinal);
  if (api.cuDeviceGet_(&device, ordinal) != CUDA_SUCCESS || api.cuDeviceGetName_(name, sizeof name, device) != CUDA_SUCCESS) {
    throw InvalidUse("CUDA device " + std::to_string(ordinal) + " does not answer");
  }
  found.name = name;
  found.virtual_memory = attribute(api, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device) != 0;
  found.integrated = attribute(api, CU_DEVICE_ATTRIBUTE_INTEGRATED, device) != 0;
  if (attribute(api, kMapsHostMemory, device) != 0) {
    found.host_node = std::max(attribute(api, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, device), 0);  // -1: there is only one
  }
  if (found.virtual_memory &&
      api.cuMemGetAllocationGranularity_(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS) {
    found.granularity = granularity;
  }
  return found;
}

CudaContext::CudaContext(const CudaApi& loaded, int ordinal) : api(loaded) {
  if (api.cuDeviceGet_(&device, ordinal) != CUDA_SUCCESS || api.cuDevicePrimaryCtxRetain_(&handle, device) != CUDA_SUCCESS) {
    throw InvalidUse("CUDA device " + std::to_string(ordinal) + " gives no context; is another process using it exclusively?");
  }
}

Current::Current(const CudaContext& context) : api_(context.api) {
  CUcontext now = nullptr;
  pushed_ = api_.cuCtxGetCurrent_(&now) != CUDA_SUCCESS || now != context.handle;
  if (pushed_) pushed_ = api_.cuCtxPushCurrent_(context.handle) == CUDA_SUCCESS;  // else the calls that follow say it
  (void)api_.cuThreadExchangeStreamCaptureMode_(&mode_);
}

Current::~Current() {
  CUcontext popped = nullptr;
  (void)api_.cuThreadExchangeStreamCaptureMode_(&mode_);
  if (pushed_) (void)api_.cuCtxPopCurrent_(&popped);
}

}  // namespace vt
