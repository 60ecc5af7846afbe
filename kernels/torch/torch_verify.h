// What verifying found out: whether operators, run again, give the same bits.
//
// Covers: comparing what was made with what is recomputed, and keeping count by operator.
// Leaves: which calls are seen, and what is made of them (torch_seen.h); running them (torch_remaker.h).
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace vt {

// What verifying found out about an operator.
struct Verified {
  std::string name;
  std::uint64_t same = 0, different = 0;
  std::uint64_t not_seen = 0;
  std::string why_not;
};
std::vector<Verified> verified();

// One call of it: whether it gave the same, or why it was not seen.
void note_verified(const std::string& name, const std::optional<bool>& same, const char* why_not);
// The operator of that name has made what is there.
void verify(Engine& engine, Range& range, const std::string& name);
// What would have been dropped is compared. Between two operations.
void verify_due(Engine& engine);

// Nobody notes anything while it is held: across a fork.
std::mutex& verified_mutex() noexcept;

}  // namespace vt
