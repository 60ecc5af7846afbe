// Every engine of this process that still owns addresses, and the one that serves new tensors.
//
// Covers: who owns an address (the deleter and the fault handler ask), which engine is current, fork.
// Leaves: what an engine does. Readers take no lock: the list they see is replaced, never changed.
#pragma once

#include <memory>
#include <span>

#include "engine/engine.h"

namespace vt {

// The engine new tensors come from, or nullptr.
Engine* current_engine() noexcept;
// The engine whose window holds `address`, or nullptr.
Engine* engine_of(const void* address) noexcept;

// Those that still own addresses. The list stays as it is.
std::span<Engine* const> open_engines() noexcept;

// Takes ownership and makes the engine current. Engines are emptied, not destroyed: a thread may still be about
// to ask one whether an address is its own.
Engine* adopt(std::unique_ptr<Engine> engine);
// Takes ownership of an engine that serves no tensors of torch (tests drive it by address).
Engine* adopt_aside(std::unique_ptr<Engine> engine);
// No engine is current any more; the one that was is detached and serves its live tensors to the end.
void retire_current();

// Whether anything goes on inside the engines. Calls inside and no step for long is what a deadlock looks like.
struct Progress {
  std::uint64_t steps = 0;  // of all engines
  Engine* busy = nullptr;   // one with a call inside; nullptr if there is none
};
Progress progress();  // never waits

// True in a forked child: new tensors there come from torch's own allocator.
bool in_forked_child() noexcept;

}  // namespace vt
