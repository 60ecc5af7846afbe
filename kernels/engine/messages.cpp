#include "engine/messages.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string>

namespace vt {

namespace {
// Straight to stderr, and without stdio, whose locks a thread may hold. In the handler of SIGSEGV strings may be made all the
// same: the touch that faulted was of a tensor's memory, and interrupted no allocator.
void say(const std::string& text) {
  if (write(STDERR_FILENO, text.data(), text.size()) < 0) return;  // nobody listens
}
}  // namespace

void warn_oversize(const char* operation, const Shortage& shortage) {
  static std::atomic<bool> warned{false};
  if (warned.exchange(true)) return;
  const std::string budget = format_bytes(shortage.budget);
  const char* const stays =
      shortage.host_full ? "the host store is full"
      : shortage.copies  ? "data in use by running operations, or given to a collective or another library, cannot be evicted"
                         : "recompute='only' copies nothing, and what cannot be recomputed stays";
  const std::string lacking = format_bytes(shortage.lacking);
  const std::string why = shortage.used > shortage.budget
                              ? " needs " + format_bytes(shortage.used) + ", more than the budget of " + budget
                              : " needs room for " + lacking + " more, which the budget of " + budget + " cannot free: " + stays;
  const char* const other = shortage.host_full ? ", or a larger host=," : shortage.copies ? "" : ", or recompute='auto',";
  const Bytes enough = std::max(shortage.used, shortage.budget + shortage.lacking);
  const std::string help = ". A budget of about " + format_bytes(enough) + other + " would help; ";
  say(std::string("vtensor: ") + (operation != nullptr ? operation : "an operation") + why + help +
      (shortage.overdrawn ? "it gets more for as long as it runs (memory_stats()['overdrawn_bytes.peak'])"
                           : "part of it is used in place in the host store, which is slow") +
      " (reported once; memory_stats()['oversize'] counts them).\n");
}

void warn_unmapped(const char* operation, const Status& status) {
  static std::atomic<bool> warned{false};
  if (warned.exchange(true)) return;
  say(std::string("vtensor: what ") + (operation != nullptr ? operation : "an operation") +
      " needs cannot be mapped at its address: " + describe(status) +
      ". It is tried again when the memory is touched; if that fails, too, the program ends with a segmentation fault.\n");
}

void warn_host_full(Bytes capacity) {
  static std::atomic<bool> warned{false};
  if (warned.exchange(true)) return;
  say("vtensor: the host store of " + format_bytes(capacity) +
      " is full in the middle of an operation; more RAM than that is used until there is room again (reported once). A larger "
      "host=, or spill_dir= on a disk with room, would help.\n");
}

std::string why_no_chunk(const Status& status, bool copies) {
  if (copies || status.code != Code::nothing_leaves) return describe(status);
  return "recompute='only' copies nothing, and what is left cannot be recomputed";
}

}  // namespace vt
