#include "engine/moves.h"

#include <chrono>

namespace vt {

void Moves::wait_for(Lock& lock, Ticket ticket, bool exposed) {
  const auto begun = std::chrono::steady_clock::now();
  ground_.let_go(lock, [&] { copies_.wait(ticket); });
  if (!exposed) return;
  const auto waited = std::chrono::steady_clock::now() - begun;
  ground_.counters.wait_ns += static_cast<std::uint64_t>(std::chrono::nanoseconds(waited).count());
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
