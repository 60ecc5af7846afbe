// The vocabulary of the native core: sizes, handles, access, status.
//
// Covers: the names every other file of kernels/ uses, with their units.
// Leaves: what a handle stands for to its owner (driver.h for chunks, host_store.h for slots).
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>

namespace vt {

using Bytes = std::size_t;
using Address = std::uintptr_t;  // a virtual address a tensor may hold
using Tick = std::uint64_t;      // operations begun so far; the only clock a policy may read

// A physical chunk of the device, as named by the driver that created it.
using ChunkId = std::uint32_t;
// A chunk-sized place in the host store.
using SlotId = std::uint32_t;
inline constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

enum class Access : std::uint8_t { none, read, write };

enum class Code : std::uint8_t {
  ok,
  out_of_budget,  // every chunk of the device is held
  nothing_leaves, // no chunk is free and every vTensor is pinned
  host_full,      // the host store has no slot left
  illegal,        // the caller broke a precondition of the port
  failed,         // the operating system said no
  refused,        // the device said no
};

// Result of a call that may fail. `call` is a static string naming what failed; `error` is an errno, the device's own
// number if it refused, or 0.
struct [[nodiscard]] Status {
  Code code = Code::ok;
  const char* call = "";
  int error = 0;

  constexpr bool ok() const noexcept { return code == Code::ok; }
};

inline constexpr Status kOk{};
constexpr Status illegal(const char* call) noexcept { return {Code::illegal, call, 0}; }

std::string describe(const Status& status);

// An allocation could not be served; `what()` is a complete message for a person. Nothing changed.
class OutOfMemory : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A configuration or a call that can never work (bad sizes, no such policy).
class InvalidUse : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// "1.50 GiB": the unit a person reads, two decimals.
std::string format_bytes(Bytes bytes);

// For states from which no right continuation exists (the data of a tensor would be lost). Prints and aborts:
// a wrong training result is worse than a stopped one. For want of memory for the core's own records a function that is noexcept
// ends the program, too (std::terminate, which says std::bad_alloc): they are small, and half updated they would be wrong.
[[noreturn]] void fatal(const std::string& message);

}  // namespace vt
