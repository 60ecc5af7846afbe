// Whose kernels an operator has: torch's own, or others that somebody put in their place.
//
// Covers: what the dispatcher tells of them.
// Leaves: what follows for an operator (torch_traits.cpp), when kernels change (vtensor/hooks/kernels.py).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <optional>

namespace vt {

enum class Kernels : std::uint8_t {
  torchs,   // compiled into torch: its schema tells what it writes
  chosen,   // torch's too, but Python chooses among several (torch/_native): nobody may run it who cannot wait for Python's lock
  foreign,  // torch.library's or an extension's: they may do anything
};

// Costs 20 us: once for each operator.
Kernels kernels_of(const c10::FunctionSchema& schema, const std::optional<c10::OperatorHandle>& handle);

}  // namespace vt
