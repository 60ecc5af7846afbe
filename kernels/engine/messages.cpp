#include "engine/messages.h"

#include <unistd.h>

#include <atomic>
#include <string>

namespace vt {

void warn_oversize(const char* operation, Bytes budget, bool overdrawn) {
  static std::atomic<bool> warned{false};
  if (warned.exchange(true)) return;
  // Straight to stderr, and without stdio: this may run inside an operation or a signal handler.
  const std::string text =
      std::string("vtensor: ") + (operation != nullptr ? operation : "an operation") + " needs more than the budget of " +
      format_bytes(budget) +
      " can free at once (what operations use while they run stays, and so does what a collective or another "
      "library was given); " +
      (overdrawn ? "it gets more for as long as it runs (memory_stats()['overdrawn_bytes.peak'])"
                 : "part of it is used in place in the host store, which is slow") +
      ". Said once; memory_stats()['oversize'] counts.\n";
  if (write(STDERR_FILENO, text.data(), text.size()) < 0) return;  // nobody listens
}

}  // namespace vt
