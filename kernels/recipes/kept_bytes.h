// Bytes of arguments that are not managed, kept for calls that may be run again.
//
// Covers: copies of them, one where many calls read the same; memory that is aligned as theirs is, as kernels may ask.
// Leaves: which arguments (torch_calls.h), those on a GPU.
#pragma once

#include <cstddef>
#include <memory>

#include "base/types.h"

namespace vt {

constexpr Bytes kBytesAlign = 64;

// Memory that begins `align` bytes behind a multiple of kBytesAlign.
std::shared_ptr<std::byte[]> aligned(Bytes bytes, Bytes align);
// What lies there now. The same bytes at the same place have one copy: a small weight is an argument of hundreds of calls.
std::shared_ptr<std::byte[]> copied(Address from, Bytes bytes);

}  // namespace vt
