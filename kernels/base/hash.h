// The hash that names what iterations do: rolling, and the same in every process.
#pragma once

#include <cstdint>

namespace vt {

constexpr std::uint64_t kHashSeed = 0x9e3779b97f4a7c15ull;

constexpr std::uint64_t mix(std::uint64_t hash, std::uint64_t value) noexcept {
  hash ^= value + kHashSeed + (hash << 6) + (hash >> 2);
  hash *= 0xff51afd7ed558ccdull;
  return hash ^ (hash >> 32);
}

}  // namespace vt
