#include "memory/residency.h"

#include <array>

namespace vt {

const char* name_of(State state) noexcept {
  static constexpr std::array<const char*, kStates> kNames = {"resident", "leaving", "absent", "arriving",
                                                              "borrowed", "dropped", "given"};
  return kNames[static_cast<std::size_t>(state)];
}

const char* name_of(Event event) noexcept {
  static constexpr std::array<const char*, kEvents> kNames = {"evict",   "discard",      "left",   "stay",     "fetch",
                                                              "arrived", "turn_back",    "borrow", "withdraw", "drop",
                                                              "made",    "made_in_host", "give"};
  return kNames[static_cast<std::size_t>(event)];
}

}  // namespace vt
