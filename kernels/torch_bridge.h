// The seam to torch: where its memory comes from, and what its operations are about to use.
//
// Covers: the allocator shim (large allocations to the engine, the rest to torch's own) and the observer (every
// dispatcher operation makes its tensor arguments resident and pins them while it runs).
// Leaves: all policy. torch_bridge.cpp is the only file of kernels/ that includes torch.
#pragma once

#include "engine.h"

namespace vt {

// Routes torch's CPU allocations of at least `min_bytes` to the current engine. Operations are observed from the
// moment live tensors first came near the budget: with room to spare nothing can be missing, and nothing is paid
// (I8). The operation that runs at that moment was not seen; what it misses, the fault handler brings. With
// `observe_always` from the start: for a device without such a handler, and for tests that allow no fault.
void attach_torch(Bytes min_bytes, bool observe_always);
// Starts observing now if the engine asks for it (Engine::pressed). For calls that evict outside an allocation.
void observe_if_pressed();
bool observing() noexcept;
// Torch is as it was. Tensors that live stay valid.
void detach_torch();

// While set, this thread's allocations are managed whatever their size (the salloc primitive).
void manage_all_sizes(bool all) noexcept;

// Bytes of tensors below `min_bytes`, which torch's own allocator serves while we are attached.
struct Unmanaged {
  std::int64_t current = 0, peak = 0, allocated = 0, freed = 0;
};
Unmanaged unmanaged();
void reset_unmanaged_peak();

}  // namespace vt
