// The generator an operation draws from, as it was when the operation began.
//
// Covers: which it is, copies of it. Leaves: whether somebody else drew meanwhile (iteration/draws.h), what else a call needs
// (torch_calls.h).
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/record_function.h>

#include "torch/torch_traits.h"

namespace vt {

// Of the operation that begins: its argument, or that of its device, as it is now. Undefined on devices of other kinds. Pre: its
// traits name an argument.
at::Generator generator_now(const at::RecordFunction& function, const Traits& traits);
// Another in the same state.
at::Generator copy_of(at::Generator generator);

}  // namespace vt
