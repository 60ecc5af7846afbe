#include "engine/moves.h"

#include "base/clock.h"

namespace vt {

void Moves::wait_for(Lock& lock, Ticket ticket, bool exposed) {
  const auto begun = Clock::now();
  ground_.let_go(lock, [&] { copies_.wait(ticket); });
  if (exposed) ground_.counters.wait_ns += ns_since(begun);
}

void Moves::settle(Lock& lock) {
  for (;;) {
    reap();
    auto ticket = copies_.oldest(Lane::out);
    if (!ticket) ticket = copies_.oldest(Lane::in);
    if (!ticket) return;
    wait_for(lock, *ticket);
  }
}

}  // namespace vt
