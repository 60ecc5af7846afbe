// One managed allocation in the life of a thread: what an allocator shim does, whatever device and library it serves.
//
// Covers: the row of the trace it belongs to, the pin of a newborn, the streams of an ordered device; allocations in which
// several tensors lie (shelves); tensors kept for code that uses them past torch's operations.
// Leaves: which allocations are managed, and what torch makes of them (torch_bridge.cpp, torch_cuda.cpp).
#pragma once

#include "iteration/thread_state.h"

namespace vt {

// nullptr once the engine is detached. Throws OutOfMemory. `stream`: where it is used first, on an ordered device.
void* allocate_managed(Engine& engine, Bytes bytes, Lane stream = Lane::none);
// Pre: `address` is a live tensor's. The engine need not be the current one.
void free_managed(Engine& engine, void* address);
// One tensor more lies in the allocation around `address`, which is a shelf from now on: it is freed with the last of them, at
// whatever address. To the engine it stays one tensor, of which operations use parts. Pre: the caller keeps it alive.
void share_managed(Engine& engine, const void* address);

// The calling thread hands these tensors to code that no operation tells of, and that may write them if `unseen`. Where nothing
// faults they are resident, and pinned for the thread until release_kept(). Those that are not managed are passed over.
void keep(Engine& engine, std::span<const Address> addresses, bool unseen);
// How many the thread keeps.
std::size_t kept(const Engine& engine) noexcept;
// Lets go of all but the first so many. What the thread's stream was asked for meanwhile used them.
void release_kept(Engine& engine, std::size_t but);

}  // namespace vt
