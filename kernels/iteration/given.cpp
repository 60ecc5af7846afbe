#include "iteration/given.h"

#include "iteration/thread_state.h"
#include "process/registry.h"

namespace vt {

void Given::add(std::span<const Address> addresses) {
  for (const Address address : addresses) add_to(*due_, address);
}

void Given::add_to(Due& due, Address address) {
  const void* const at = reinterpret_cast<const void*>(address);
  Engine* const engine = engine_of(at);
  if (engine == nullptr) return;
  due.push_back(address);  // before it is given: then there is memory to remember it
  bool given = false;
  try {
    given = engine->export_address(at, Export::for_a_call);
  } catch (...) {
    due.pop_back();
    throw;
  }
  if (!given) due.pop_back();
}

void Given::add_what_is_made() { this_thread().given = due_; }

void Given::end() noexcept {
  if (Thread& thread = this_thread(); thread.given == due_) thread.given = nullptr;
  for (; !due_->empty(); due_->pop_back()) {
    const void* const at = reinterpret_cast<const void*>(due_->back());
    if (Engine* const engine = engine_of(at)) engine->export_address(at, Export::call_ended);
  }
}

}  // namespace vt
