#include "process/fault_handler.h"

#include <ucontext.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <mutex>
#include <utility>

#include "process/registry.h"

namespace vt {

namespace {

std::mutex g_starting;
// Who was there before us, the newest last. Read by signal handlers: an entry stays what it is.
constexpr int kMostBefore = 32;
std::array<struct sigaction, kMostBefore> g_before = {};
std::atomic<int> g_count{0};
// Python's faulthandler among them: once it is disabled it returns at once, and who waits for what it does stands for ever.
std::atomic<void (*)(int)> g_pythons{nullptr};
std::atomic<bool> g_pythons_is_dead{false};

#if defined(__x86_64__)
using Registers = decltype(mcontext_t::gregs);
const Registers& registers_of(const mcontext_t& context) { return context.gregs; }
#elif defined(__aarch64__)
using Registers = decltype(mcontext_t::regs);
const Registers& registers_of(const mcontext_t& context) { return context.regs; }
#else
using Registers = mcontext_t;
const Registers& registers_of(const mcontext_t& context) { return context; }
#endif

// Faults of a thread that nothing came of, in a row and with all registers the same: the memory is there and the access still
// fails, a real error; or whoever is to serve them does nothing.
struct InVain {
  Registers registers;
  unsigned times;

  bool many(const void* context) {
    const Registers& now = registers_of(static_cast<const ucontext_t*>(context)->uc_mcontext);
    times = std::memcmp(&registers, &now, sizeof now) == 0 ? times + 1 : 0;
    std::memcpy(&registers, &now, sizeof now);
    return times > 10000;
  }
};
thread_local InVain t_in_vain = {};

bool is_pythons(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler != SIG_DFL && action.sa_handler == g_pythons.load();
}

// By kill() or raise(): nobody touched anything.
bool is_sent(const siginfo_t* info) { return info->si_code <= 0; }
// By the program itself: a handler that serves some faults may raise the signal again for those that it leaves to others.
bool is_raised(const siginfo_t* info) { return is_sent(info) && info->si_pid == getpid(); }

// Whom a thread passes something on to. He may never come back (siglongjmp): then our frames are no longer below `frame`.
struct Passing {
  int to;
  std::uintptr_t frame;
  const void* context;
};

// The newest serves it, and returns; any number of times. He may also pass on to who was there when he came, which is us, with
// the same context; or, as Python's faulthandler does, print and raise the signal again. Both are for who came before him.
void pass_on(int signal, siginfo_t* info, void* context) {
  static thread_local Passing passing = {};
  const auto frame = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
  const bool passed_back = frame < passing.frame && (context == passing.context || is_raised(info));
  int newest = (passed_back ? passing.to : g_count.load()) - 1;
  while (newest >= 0 && g_pythons_is_dead.load() && is_pythons(g_before[static_cast<std::size_t>(newest)])) --newest;
  const struct sigaction nobody = {};
  const struct sigaction& previous = newest < 0 ? nobody : g_before[static_cast<std::size_t>(newest)];
  const bool detailed = (previous.sa_flags & SA_SIGINFO) != 0;
  const bool anybody = detailed ? previous.sa_sigaction != nullptr
                                : previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN;
  if (!anybody) {
    if (is_sent(info) && previous.sa_handler == SIG_IGN) return;
    std::signal(signal, SIG_DFL);  // returning repeats the access, and the program ends as it would without us
    if (is_sent(info)) raise(signal);
    return;
  }
  const Passing outer = std::exchange(passing, {newest, frame, context});
  if (detailed) {
    previous.sa_sigaction(signal, info, context);
  } else {
    previous.sa_handler(signal);
  }
  passing = outer;
  if (is_pythons(previous) && t_in_vain.many(context)) g_pythons_is_dead = true;
}

// Runs on the thread that touched the memory, between two of its instructions. Taking the engine's lock here is
// safe because code that holds it never touches tensor addresses.
void on_signal(int signal, siginfo_t* info, void* context) {
  const int saved = errno;
  Engine* engine = is_sent(info) ? nullptr : engine_of(info->si_addr);
  FaultOutcome outcome = FaultOutcome::foreign;
  if (engine != nullptr) outcome = engine->on_fault(reinterpret_cast<Address>(info->si_addr));
  if (outcome == FaultOutcome::served) t_in_vain.times = 0;
  if (outcome == FaultOutcome::foreign || (outcome == FaultOutcome::idle && t_in_vain.many(context))) {
    pass_on(signal, info, context);
  }
  errno = saved;
}

bool is_ours(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == on_signal;
}

bool same(const struct sigaction& one, const struct sigaction& other) {
  const bool detailed = (one.sa_flags & SA_SIGINFO) != 0;
  if (detailed != ((other.sa_flags & SA_SIGINFO) != 0)) return false;
  return detailed ? one.sa_sigaction == other.sa_sigaction : one.sa_handler == other.sa_handler;
}

}  // namespace

void note_pythons_handler() noexcept {
  struct sigaction now = {};
  if (sigaction(SIGSEGV, nullptr, &now) != 0) return;
  if (is_ours(now) && g_count.load() > 0) now = g_before[static_cast<std::size_t>(g_count.load()) - 1];
  if ((now.sa_flags & SA_SIGINFO) != 0) return;
  g_pythons = now.sa_handler;
  g_pythons_is_dead = false;
}

void arm_fault_handler() noexcept {
  struct sigaction now = {};
  if (sigaction(SIGSEGV, nullptr, &now) != 0 || is_ours(now)) return;
  std::lock_guard lock(g_starting);
  if (sigaction(SIGSEGV, nullptr, &now) != 0 || is_ours(now)) return;  // by another thread
  int count = 0;  // of those that stay: who comes again is the newest, and who came upon him has gone
  while (count < g_count.load() && !same(g_before[static_cast<std::size_t>(count)], now)) ++count;
  if (count < kMostBefore) {
    if (count == g_count.load()) g_before[static_cast<std::size_t>(count)] = now;
    g_count.store(count + 1);
  }
  struct sigaction ours = {};
  ours.sa_sigaction = on_signal;
  ours.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  sigemptyset(&ours.sa_mask);
  sigaction(SIGSEGV, &ours, nullptr);
}

}  // namespace vt
