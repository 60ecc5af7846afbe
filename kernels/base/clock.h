// How long things take, on this machine's steady clock.
#pragma once

#include <chrono>
#include <cstdint>

namespace vt {

using Clock = std::chrono::steady_clock;

inline std::uint64_t ns_since(Clock::time_point begun) noexcept {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begun).count());
}

}  // namespace vt
