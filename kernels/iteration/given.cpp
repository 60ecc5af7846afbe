#include "iteration/given.h"

#include "iteration/thread_state.h"
#include "process/registry.h"

namespace vt {

namespace {
void add_to(Given::Due& due, Address address) {
  const void* const at = reinterpret_cast<const void*>(address);
  Engine* const engine = engine_of(at);
  Range* const range = engine != nullptr ? engine->find(at) : nullptr;
  if (range == nullptr) return;
  due.tensors.emplace_back(address, range->serial);  // before it is given: then there is memory to remember it
  bool given = false;
  try {
    given = engine->export_address(at, Export::for_a_call);
  } catch (...) {
    due.tensors.pop_back();
    throw;
  }
  if (!given) due.tensors.pop_back();
}
}  // namespace

void Given::add(std::span<const Address> addresses) {
  for (const Address address : addresses) add_to(*due_, address);
}

void Given::add_what_is_made() {
  std::shared_ptr<Due>& given = this_thread().given;
  due_->outer = given;
  given = due_;
}

void Given::made(std::shared_ptr<Due>& whose, Address address) {
  while (whose != nullptr && whose->ended) whose = std::shared_ptr<Due>(whose->outer);  // by another thread
  if (whose != nullptr) add_to(*whose, address);
}

void Given::end() noexcept {
  if (due_->ended.exchange(true)) return;
  if (std::shared_ptr<Due>& given = this_thread().given; given == due_) given = due_->outer;
  for (const auto& [address, serial] : due_->tensors) {
    const void* const at = reinterpret_cast<const void*>(address);
    Engine* const engine = engine_of(at);
    const Range* const range = engine != nullptr ? engine->find(at) : nullptr;
    if (range != nullptr && range->serial == serial) engine->export_address(at, Export::call_ended);
  }
}

}  // namespace vt
