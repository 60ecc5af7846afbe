// The seam to torch's CUDA memory: large allocations to the engine, all else to torch's own caching allocator.
//
// Covers: an allocator that is torch's native one in every respect but large allocations, so that memory_stats(), empty_cache(),
// cudnn.benchmark, MemPool, graphs and record_stream go on working; streams as lanes.
// Leaves: what operations use (torch_observer.h). Compiled only against a torch that was built with CUDA.
#pragma once

#include "engine/engine.h"

namespace vt {

// Routes torch's CUDA allocations of at least `min_bytes` on device `ordinal` to the current engine. CUDA may be initialised
// already.
void attach_torch_cuda(Bytes min_bytes, int ordinal);
// Torch is as it was. Tensors that live stay valid.
void detach_torch_cuda();

}  // namespace vt
