// A GPU's memory that is let go of under the engine's lock, and freed without it.
//
// Torch's allocator may take Python's lock while it frees (torch.cuda.memory._record_memory_history), and who has that may be
// waiting for the engine's.
#pragma once

#include <ATen/core/Tensor.h>

namespace vt {

void free_later(at::Tensor tensor);
// Pre: the engine's lock is not held.
void free_what_is_left();

}  // namespace vt
