// Running operations that were seen, below autograd and autocast, leaving no trace in the program:
// what they draw, make and set is their own (but for settings of the process while they run, torch_conditions.h).
//
// Covers: one run; the thread that makes it for those who cannot; comparing what is made with what is there.
// Leaves: which operations are seen (torch_seen.h), what they are (torch_calls.h), what becomes of results (engine/remake.h).
#pragma once

#include <memory>
#include <optional>

#include "engine/engine.h"

namespace vt {

std::unique_ptr<Remaker> make_remaker(Engine& engine);

// Runs what makes a live tensor, and compares. Nothing if it cannot be recomputed.
std::optional<bool> made_alike(Engine& engine, Range& range);

// In a forked child the thread is its parent's.
void forget_thread_aside();

}  // namespace vt
