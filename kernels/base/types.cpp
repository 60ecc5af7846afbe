#include "base/types.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace vt {

namespace {

const char* meaning(Code code) {
  switch (code) {
    case Code::ok: return "ok";
    case Code::out_of_budget: return "the budget is used up";
    case Code::nothing_leaves: return "every chunk is pinned by a running operation";
    case Code::host_full: return "the host store is full";
    case Code::illegal: return "illegal order of calls";
    case Code::failed: return "the call failed";
    case Code::refused: return "the device refused";
  }
  return "unknown";
}

}  // namespace

std::string describe(const Status& status) {
  std::string text = meaning(status.code);
  if (status.call[0] != '\0') text = std::string(status.call) + ": " + text;
  if (status.code == Code::refused) return text + " (its error " + std::to_string(status.error) + ")";
  if (status.error != 0) text += std::string(" (") + std::strerror(status.error) + ")";
  return text;
}

std::string format_bytes(Bytes bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024.0 && unit + 1 < std::size(kUnits)) {
    value /= 1024.0;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.2f %s", value, kUnits[unit]);
  return text;
}

void fatal(const std::string& message) {
  std::fprintf(stderr, "vtensor: fatal: %s\n", message.c_str());
  std::abort();
}

}  // namespace vt
