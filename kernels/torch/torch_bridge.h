// The seam to torch's memory.
//
// Covers: the allocator shim: large allocations to the engine, the rest to torch's own.
// Leaves: what operations use (torch_observer.h), all policy.
#pragma once

#include "iteration/thread_state.h"

namespace vt {

// From now on torch's allocations for the CPU ask here, for good: who allocates by raw_allocate() (mkldnn) frees by whatever
// allocator is there then. Throws InvalidUse if another library's keeps its place.
void serve_torch();
// Routes those of at least `min_bytes` to the current engine. Pre: serve_torch().
void attach_torch(Bytes min_bytes, bool observe_always);
// Torch is as it was. Tensors that live stay valid.
void detach_torch();

// Which of this thread's allocations are managed from now on: all for the salloc primitive; none for what belongs in the host's
// memory where that is the device's too.
void manage(Managing what) noexcept;

// Bytes of tensors below `min_bytes`, which torch's own allocator serves while we are attached; 0 where that is not malloc's, as
// nobody tells how large what it frees is.
struct Unmanaged {
  std::int64_t current = 0, peak = 0, allocated = 0, freed = 0;
};
Unmanaged unmanaged();
void reset_unmanaged_peak();

}  // namespace vt
