#include "cuda/cuda_slab.h"

#include "cuda/cuda_device.h"

namespace vt {

namespace {

// The primary context of the device, which torch and CuPy use too, while this lives.
struct Primary {
  Primary(const CudaApi& api, int ordinal) : context(api, ordinal), current(context) {}
  const CudaContext context;
  const Current current;
};

bool add_chunk(const CudaApi& api, CUdeviceptr at, Bytes chunk_bytes, int ordinal) {
  const CUmemAllocationProp properties = memory_of(ordinal);
  CUmemGenericAllocationHandle handle = 0;
  if (api.cuMemCreate_(&handle, chunk_bytes, &properties, 0) != CUDA_SUCCESS) return false;
  const bool well = api.map(at, chunk_bytes, {&handle, 1}, {&properties.location, 1}) == CUDA_SUCCESS;
  (void)api.cuMemRelease_(handle);  // the mapping keeps it
  return well;
}

}  // namespace

Address make_slab(Bytes bytes, Bytes chunk_bytes, int ordinal) {
  const CudaApi& api = CudaApi::load();
  const Primary primary(api, ordinal);
  CUdeviceptr base = 0;
  if (api.cuMemAddressReserve_(&base, bytes, chunk_bytes, 0, 0) != CUDA_SUCCESS) return 0;
  for (Bytes made = 0; made < bytes; made += chunk_bytes) {
    if (add_chunk(api, base + made, chunk_bytes, ordinal)) continue;
    for (Bytes back = 0; back < made; back += chunk_bytes) (void)api.cuMemUnmap_(base + back, chunk_bytes);
    (void)api.cuMemAddressFree_(base, bytes);
    return 0;
  }
  return static_cast<Address>(base);
}

void free_slab(Address at, Bytes bytes, Bytes chunk_bytes, int ordinal) {
  const CudaApi& api = CudaApi::load();
  const Primary primary(api, ordinal);
  (void)api.cuCtxSynchronize_();  // unmapping does not wait for kernels that use the memory
  for (Bytes back = 0; back < bytes; back += chunk_bytes) (void)api.cuMemUnmap_(at + back, chunk_bytes);
  (void)api.cuMemAddressFree_(at, bytes);
}

Pinning cuda_pinning(int ordinal, const char* library) {
  const CudaApi& api = CudaApi::load(library);
  const auto pin = [&api, ordinal](void* memory, Bytes bytes) {
    const Primary primary(api, ordinal);
    return api.cuMemHostRegister_(memory, bytes, CU_MEMHOSTREGISTER_PORTABLE) == CUDA_SUCCESS;
  };
  const auto unpin = [&api, ordinal](void* memory) {
    const Primary primary(api, ordinal);
    (void)api.cuMemHostUnregister_(memory);
  };
  return {pin, unpin};
}

}  // namespace vt
