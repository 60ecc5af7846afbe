#include "process/fault_handler.h"

#include <cerrno>
#include <csignal>
#include <mutex>

#include "process/registry.h"

namespace vt {

namespace {

std::mutex g_starting;
struct sigaction g_previous = {};
struct sigaction g_first = {};  // who was there before us, and before others who came upon us
bool g_armed_before = false;

// Faults with nothing to do, many in a row: the memory is there and the access still fails, a real error.
bool stuck(FaultOutcome outcome) {
  static thread_local unsigned times = 0;
  times = outcome == FaultOutcome::idle ? times + 1 : 0;
  return times > 10000;
}

void pass_on(int signal, siginfo_t* info, void* context) {
  // Python's faulthandler prints and raises the signal again, with us installed: raised by whom it was passed on to, it ends
  // the program. Others serve theirs and return, any number of times.
  static thread_local bool passing = false;
  const bool detailed = (g_previous.sa_flags & SA_SIGINFO) != 0;
  const bool anybody = detailed ? g_previous.sa_sigaction != nullptr
                                : g_previous.sa_handler != SIG_DFL && g_previous.sa_handler != SIG_IGN;
  if (passing || !anybody) {
    std::signal(signal, SIG_DFL);  // returning repeats the access, and the program ends as it would without us
    return;
  }
  passing = true;
  if (detailed) {
    g_previous.sa_sigaction(signal, info, context);
  } else {
    g_previous.sa_handler(signal);
  }
  passing = false;
}

// Runs on the thread that touched the memory, between two of its instructions. Taking the engine's lock here is
// safe because code that holds it never touches tensor addresses.
void on_signal(int signal, siginfo_t* info, void* context) {
  const int saved = errno;
  Engine* engine = engine_of(info->si_addr);
  FaultOutcome outcome = FaultOutcome::foreign;
  if (engine != nullptr) outcome = engine->on_fault(reinterpret_cast<Address>(info->si_addr));
  if (stuck(outcome) || outcome == FaultOutcome::foreign) pass_on(signal, info, context);
  errno = saved;
}

bool armed(struct sigaction* now) {
  return sigaction(SIGSEGV, nullptr, now) == 0 && (now->sa_flags & SA_SIGINFO) != 0 && now->sa_sigaction == on_signal;
}

}  // namespace

void arm_fault_handler(bool one_left) noexcept {
  struct sigaction now = {};
  if (!one_left && armed(&now)) return;
  std::lock_guard lock(g_starting);
  if (armed(&now)) {  // by another thread; or whoever was there meanwhile is the one to pass on to
    if (one_left) g_previous = g_first;
    return;
  }
  struct sigaction ours = {};
  ours.sa_sigaction = on_signal;
  ours.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  sigemptyset(&ours.sa_mask);
  g_previous = now;
  if (one_left || !g_armed_before) g_first = now;
  g_armed_before = true;
  sigaction(SIGSEGV, &ours, nullptr);
}

}  // namespace vt
