// Seeing operations that can be run again.
//
// Covers: from when on, and which; what of an operation is kept when it begins, and when it ends.
// Leaves: which operators there are (torch_traits.h), keeping arguments (torch_calls.h), running (torch_remaker.h), comparing
// (torch_verify.h).
#pragma once

#include <ATen/record_function.h>

#include "iteration/thread_state.h"
#include "torch/torch_traits.h"

namespace vt {

// What is seen: nothing, what a plan names (PlanRunner), or everything. Of all others it is only noted whether they could be:
// where the next plan needs it, or `noted`, always.
enum class Seeing : std::uint8_t { nothing, planned, noted, all };
// From now on. `verify`: nothing is dropped; what would be is recomputed and compared, and so is every result when it is made.
void see(Engine& engine, Seeing what, bool verify = false);
// Brings back all that is dropped; nothing is seen or dropped any more.
void stop_seeing(Engine& engine);
// While kernels become others than those that were seen: what is dropped is brought back first, by those that made it, and what
// was seen is forgotten. Nothing is dropped meanwhile; then operators are looked at anew.
class KernelsChange {
 public:
  explicit KernelsChange(Engine* engine);  // nullptr: there is none
  KernelsChange(const KernelsChange&) = delete;
  KernelsChange& operator=(const KernelsChange&) = delete;
  void end();  // due

 private:
  Engine* const engine_;  // never destroyed
  bool ended_ = false;
};

// An operation begins, and ends, on a thread that sees; only the outermost that torch itself cannot look into matters.
void call_begins(Thread& thread, Engine& engine, const at::RecordFunction& function, const Traits& traits);
// Another begins within it. Pre: it is one that is not torch's own; or others may run in the one that is seen, or be cast.
void look_within(Thread& thread, const at::RecordFunction& function, const Traits& traits);
void call_ends(Thread& thread, std::size_t frame);

// Code of the user's begins on this thread, whose kernels may write what they like: nothing in it is kept, as in a named range
// with arguments. True if that is new, and to be ended by open_eyes().
bool close_eyes() noexcept;
void open_eyes() noexcept;

}  // namespace vt
