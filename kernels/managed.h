// One managed allocation in the life of a thread: what an allocator shim does, whatever device and library it serves.
//
// Covers: the row of the trace it belongs to, the pin of a newborn, the streams of an ordered device.
// Leaves: which allocations are managed, and what torch makes of them (torch_bridge.cpp, torch_cuda.cpp).
#pragma once

#include "thread_state.h"

namespace vt {

// nullptr once the engine is detached. Throws OutOfMemory. `stream`: where it is used first, on an ordered device.
void* allocate_managed(Engine& engine, Bytes bytes, Ticket::Lane stream = Ticket::Lane::none);
// Pre: `address` is a live tensor's. The engine need not be the current one.
void free_managed(Engine& engine, void* address);

}  // namespace vt
