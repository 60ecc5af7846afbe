#include "torch/torch_seen.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <utility>

#include "iteration/recording.h"
#include "process/registry.h"
#include "torch/torch_calls.h"
#include "torch/torch_free_later.h"
#include "torch/torch_remaker.h"
#include "torch/torch_verify.h"

namespace vt {

namespace {

std::atomic<Seeing> g_seeing{Seeing::nothing};
std::atomic<bool> g_verify{false};
std::mutex g_beginning;  // of seeing, and its end. Nobody waits for Python's lock who has it: a fork waits for it, and has that

// A fork copies one thread: what is dropped could not be recomputed in the child.
thread_local Engine* t_forks = nullptr;
void before_fork() {
  g_beginning.lock();
  Engine* const engine = current_engine();
  t_forks = engine != nullptr && engine->remake().on() ? engine : nullptr;
  if (t_forks != nullptr) t_forks->remake().suspend(false);
  verified_mutex().lock();  // not before: what is being made may note what it found
}
void after_fork() {
  verified_mutex().unlock();
  if (t_forks != nullptr) t_forks->remake().resume();
  g_beginning.unlock();
}

bool casts(at::DeviceType device, c10::DispatchKey key) {
  return at::autocast::is_autocast_enabled(device) && !c10::impl::tls_local_dispatch_key_set().excluded_.has(key);
}
bool casts_on_cpu() { return casts(at::kCPU, c10::DispatchKey::AutocastCPU); }
bool casts_on_cuda() { return casts(at::kCUDA, c10::DispatchKey::AutocastCUDA); }

// Whether `is` says so of a tensor among the operation's arguments, which may be in lists.
template <typename Is>
bool any_tensor(const at::RecordFunction& function, const Is& is) {
  const auto is_one = [&](const c10::IValue& value) {
    return value.isTensor() && value.toTensor().defined() && is(value.toTensor());
  };
  return std::any_of(function.inputs().begin(), function.inputs().end(), [&](const c10::IValue& input) {
    if (!input.isTensorList() && !input.isOptionalTensorList()) return is_one(input);
    return std::any_of(input.toListRef().begin(), input.toListRef().end(), is_one);
  });
}

// Whether it only casts its arguments, and calls the operation with those: autocast has a kernel for it and for their device.
bool only_casts(const at::RecordFunction& function, const Traits& traits) {
  c10::DispatchKeySet keys;
  if (traits.cast_on_cpu && casts_on_cpu()) keys = keys.add(c10::DispatchKey::AutocastCPU);
  if (traits.cast_on_cuda && casts_on_cuda()) keys = keys.add(c10::DispatchKey::AutocastCUDA);
  return !keys.empty() && any_tensor(function, [&](const at::Tensor& tensor) { return tensor.key_set().has_any(keys); });
}

// Whether what the operation calls is what counts: it only casts its arguments, or somebody looks at operations from above, who
// may do with them what he likes.
bool sees_through(const at::RecordFunction& function, const Traits& traits) {
  const auto keys = c10::impl::tls_local_dispatch_key_set();
  static constexpr c10::DispatchKeySet kAbove({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot,
                                               c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                                               c10::DispatchKey::FuncTorchDynamicLayerBackMode, c10::DispatchKey::Functionalize});
  if (keys.included_.has_any(kAbove)) return true;
  for (const c10::IValue& input : function.inputs()) {
    if (input.isTensor() && input.toTensor().defined() && input.toTensor().key_set().has_any(kAbove)) return true;
  }
  return only_casts(function, traits);
}

}  // namespace

void see(Engine& engine, Seeing what, bool verify) {
  static const int registered = pthread_atfork(before_fork, after_fork, [] {
    forget_thread_aside();
    after_fork();
  });
  (void)registered;
  const std::lock_guard lock(g_beginning);
  g_seeing.store(what);
  g_verify.store(verify);
  if (!engine.remake().on()) engine.remake().use(make_remaker(engine), verify);
}

void stop_seeing(Engine& engine) {
  {
    const std::lock_guard lock(g_beginning);
    g_seeing.store(Seeing::nothing);
    if (engine.remake().on()) engine.remake().suspend(true);
  }
  free_what_is_left();
}

KernelsChange::KernelsChange(Engine* engine) : engine_(engine) {
  if (engine_ != nullptr) {
    const std::lock_guard lock(g_beginning);
    engine_->remake().suspend(true);
  }
  free_what_is_left();
}

void KernelsChange::end() {
  if (std::exchange(ended_, true)) return;
  const std::lock_guard lock(g_beginning);
  look_again();
  const auto resume = [](Engine* engine) { engine->remake().resume(); };
  const std::unique_ptr<Engine, decltype(resume)> first(engine_, resume);
  Engine* const now = current_engine();
  if (now == nullptr || g_seeing.load() == Seeing::nothing) return;
  now->remake().suspend(true);  // also what was seen meanwhile, where another change ended or a session began
  const std::unique_ptr<Engine, decltype(resume)> second(now, resume);
  now->remake().use(make_remaker(*now), g_verify.load());
}

// --- calls ----------------------------------------------------------------------------------------------------

namespace {
constexpr std::size_t kClosed = kNone - std::size_t{1};  // no frame is the one that ends it
}  // namespace

bool close_eyes() noexcept {
  auto& frame = this_thread().seen_call.frame;
  if (frame != kNone) return false;
  frame = kClosed;
  return true;
}

void open_eyes() noexcept {
  Seen& seen = this_thread().seen_call;
  if (seen.frame == kClosed) seen = {};
}

namespace {

// Whether what packs tensors for backward is the user's, or tangents are made on the way.
bool may_call_others(const at::RecordFunction& function, std::size_t fresh) {
  if (!at::SavedTensorDefaultHooks::get_tls_state().stack.empty()) return true;
  if (fresh < 2) return false;  // a tangent is as large as its result: one more than there may be
  return any_tensor(function, [](const at::Tensor& tensor) { return tensor._fw_grad(0).defined(); });
}

}  // namespace

void look_within(Thread& thread, const at::RecordFunction& function, const Traits& traits) {
  Others& others = thread.seen_call.others;
  if (traits.again == Again::custom && !traits.named) others = Others::ran;  // it may do anything, and wait for Python's lock
  // The operation's own kernels are below autograd; what begins above it is somebody else's.
  const bool above = !c10::impl::tls_local_dispatch_key_set().excluded_.has_any(c10::autograd_dispatch_keyset);
  if ((others == Others::may_run && above) || only_casts(function, traits)) others = Others::ran;
}

namespace {

void note_call(Thread& thread, Engine& engine, const at::RecordFunction& function, const Traits& traits) {
  Seen& seen = thread.seen_call;
  if (traits.named) {  // code of the user's is in there: its kernels may write what they like
    seen.frame = thread.frames.size() - 1;
    return;
  }
  if (sees_through(function, traits)) return;
  seen.frame = thread.frames.size() - 1;
  const Seeing what = g_seeing.load(std::memory_order_relaxed);
  if (what == Seeing::nothing) return;
  bool wanted = what == Seeing::all, asked = false;
  if (const Recording recording{thread}) {
    seen.first_row = thread.frames.back().row != kNone ? thread.frames.back().row : recording->log().rows();
    wanted |= recording->sees(seen.first_row);
    asked = what == Seeing::noted || recording->asks();
  }
  if (!wanted && !asked) return;
  const bool verify = g_verify.load(std::memory_order_relaxed);
  const bool adds_anyhow = traits.adds_anyhow && engine.streams() != nullptr && !at::globalContext().deterministicAlgorithms();
  const Again again = adds_anyhow ? Again::unrepeatable : traits.again;
  const bool usual = Conditions::floats_are_usual() && !Conditions::are_set_aside();
  if (again != Again::yes || at::in_parallel_region() || !usual) {
    if (verify) note_verified(traits.name, std::nullopt, why_not(again));
    return;
  }
  seen.fresh = traits.fresh_lists ? ~std::size_t{0} : traits.fresh;
  seen.exceptions = std::uncaught_exceptions();
  if (may_call_others(function, seen.fresh)) {
    seen.others = Others::may_run;
  } else if (casts_on_cpu() || casts_on_cuda()) {
    seen.others = Others::may_cast;
  }
  if (!wanted) {
    seen.could = seen.counts = TorchCall::could_keep(function, traits, engine);
    seen.fills = TorchCall::filled(function, traits, engine) != nullptr;
    return;
  }
  if (traits.draws) seen.draws.emplace();
  std::vector<Range*> sources;
  Range* written = nullptr;
  auto call = TorchCall::keep(function, traits, engine, &sources, &written);
  if (call == nullptr) {
    if (verify) note_verified(traits.name, std::nullopt, "an argument is no plain tensor or number, or not managed and large");
    return;
  }
  if (written != nullptr) thread.changed.push_back(written);  // its content is known only now
  seen.fills = call->fills.has_value();
  seen.step = engine.remake().begin(std::move(call), sources, written);
  seen.written = seen.step != nullptr ? written : nullptr;
  seen.counts = seen.step != nullptr;
  if (engine.remake().weighs()) seen.begun = Clock::now();
}

}  // namespace

void call_begins(Thread& thread, Engine& engine, const at::RecordFunction& function, const Traits& traits) {
  try {
    note_call(thread, engine, function, traits);
  } catch (const std::exception&) {  // no memory to keep an argument in: it is not seen, and the caller goes on
    if (thread.seen_call.step != nullptr) engine.remake().end(std::move(thread.seen_call.step), {});
    thread.seen_call = {};
    thread.seen_call.frame = thread.frames.size() - 1;
  }
}

void call_ends(Thread& thread, std::size_t frame) {
  Seen& ended = thread.seen_call;
  if (ended.frame != frame) return;
  if (ended.first_row == kNone && ended.step == nullptr && !ended.draws) {  // most often: nothing was noted of it
    ended.frame = kNone;
    ended.others = Others::none;
    return;
  }
  Seen seen = std::exchange(ended, {});
  const bool alone = !seen.draws || seen.draws->so_far();
  const bool whole = alone && seen.others != Others::ran && std::uncaught_exceptions() <= seen.exceptions;
  const bool again = (seen.step != nullptr || seen.could) && whole && seen.births.size() <= seen.fresh;
  std::uint64_t usual_ns = 0;
  if (seen.first_row != kNone) {
    const auto kind = !again       ? Recorder::CallOf::Again::no
                      : seen.fills ? Recorder::CallOf::Again::fills
                                   : Recorder::CallOf::Again::yes;
    if (const Recording recording{thread}) usual_ns = recording->call(seen.first_row, kind);
  }
  if (seen.step == nullptr) return;
  Engine& engine = *thread.engine;
  if (!again) return engine.remake().end(std::move(seen.step), {});
  auto& call = static_cast<TorchCall&>(*seen.step->operation);
  std::vector<Range*> results = seen.births;
  if (seen.fills) results.insert(results.begin(), seen.written);
  for (const Range* range : results) call.births.push_back(range->bytes);
  if (seen.written != nullptr && !seen.fills) results.push_back(seen.written);
  if (engine.remake().weighs()) {
    seen.step->ns = engine.streams() == nullptr ? ns_since(seen.begun) + 1 : usual_ns;  // there it was only asked for by now
  }
  const std::string name = call.name();
  engine.remake().end(std::move(seen.step), results);
  if (!g_verify.load(std::memory_order_relaxed)) return;
  for (Range* range : results) verify(engine, *range, name);
}

}  // namespace vt
