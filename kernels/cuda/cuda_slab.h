// Memory for a GPU that the driver of the port does not own: chunks for a CuPy pool, and pinned memory of the host.
//
// Covers: making and giving back whole chunks, one allocation handle each, mapped side by side; pinning.
// Leaves: the pool (vtensor/devices/pools.py), the use of its chunks by the engine (driver_cuda.h: donate), the host store.
#pragma once

#include "store/host_store.h"

namespace vt {

// Address of `bytes` (a multiple of chunk_bytes), which the device may read and write; 0 if it has no room. Throws InvalidUse
// where there is no device.
Address make_slab(Bytes bytes, Bytes chunk_bytes, int ordinal);
// Waits until the device has done all it was asked for. Pre: made above, with the same sizes.
void free_slab(Address at, Bytes bytes, Bytes chunk_bytes, int ordinal);

// Pins memory of the host on the device's behalf.
Pinning cuda_pinning(int ordinal, const char* library = nullptr);

}  // namespace vt
