#include "torch/torch_conditions.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/ScalarTypeToTypeMeta.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace vt {

namespace {

struct Setting {
  std::int64_t (*get)();
  void (*set)(std::int64_t);
  void (*restore)(std::int64_t) = nullptr;  // as it was, if that is more than to set it
};

at::Context& context() { return at::globalContext(); }

using B = at::Float32Backend;
using O = at::Float32Op;
using P = at::Float32Precision;

// What kernels ask for. It may be inherited from more general ones, which are left alone; nobody tells whether it is.
template <B backend, O op>
constexpr Setting precision() {
  return {[] { return static_cast<std::int64_t>(context().float32Precision(backend, op)); },
          [](std::int64_t v) {  // none is as exact as IEEE's, and would inherit
            context().setFloat32Precision(backend, op, static_cast<P>(v) == P::NONE ? P::IEEE : static_cast<P>(v));
          },
          [](std::int64_t v) {  // inherited again, if that is the same
            context().setFloat32Precision(backend, op, P::NONE);
            const auto wanted = static_cast<P>(v);
            if (context().float32Precision(backend, op) != wanted) context().setFloat32Precision(backend, op, wanted);
          }};
}

// Which kernels of attention may be chosen.
std::int64_t attention() {
  const at::Context& c = context();
  return c.userEnabledFlashSDP() + 2 * c.userEnabledMemEfficientSDP() + 4 * c.userEnabledMathSDP() + 8 * c.userEnabledCuDNNSDP();
}

void set_attention(std::int64_t v) {
  context().setSDPUseFlash((v & 1) != 0);
  context().setSDPUseMemEfficient((v & 2) != 0);
  context().setSDPUseMath((v & 4) != 0);
  context().setSDPUseCuDNN((v & 8) != 0);
}

// Flushing of denormal numbers, and the rounding of floats.
std::int64_t float_control() {
#if defined(__SSE__)
  return _mm_getcsr() & ~0x3Fu;  // without the exceptions that happened
#else
  return 0;
#endif
}

void set_float_control([[maybe_unused]] std::int64_t v) {
#if defined(__SSE__)
  _mm_setcsr(static_cast<unsigned>(v) | (_mm_getcsr() & 0x3Fu));
#endif
}

void reduced_precision(std::int64_t v, void (at::Context::*set)(bool, bool)) {
  const auto option = static_cast<at::CuBLASReductionOption>(v);
  (context().*set)(option == at::CuBLASReductionOption::AllowReducedPrecisionWithSplitK,
                   option != at::CuBLASReductionOption::DisallowReducedPrecisionDisallowSplitK);
}

constexpr std::size_t kOfThread = 3;
constexpr Setting kSettings[] = {  // those of the thread first
    {[] { return std::int64_t{at::get_num_threads()}; }, [](std::int64_t v) { at::set_num_threads(static_cast<int>(v)); }},
    {float_control, set_float_control},
    {[] { return std::int64_t{c10::GradMode::is_enabled()}; }, [](std::int64_t v) { c10::GradMode::set_enabled(v != 0); }},
    {[] { return static_cast<std::int64_t>(c10::get_default_dtype_as_scalartype()); },
     [](std::int64_t v) { c10::set_default_dtype(c10::scalarTypeToTypeMeta(static_cast<c10::ScalarType>(v))); }},
    {[] { return std::int64_t{context().userEnabledMkldnn()}; }, [](std::int64_t v) { context().setUserEnabledMkldnn(v != 0); }},
    {[] { return std::int64_t{context().deterministicMkldnn()}; },
     [](std::int64_t v) { context().setDeterministicMkldnn(v != 0); }},
    {[] { return std::int64_t{context().userEnabledNNPACK()}; }, [](std::int64_t v) { context().setUserEnabledNNPACK(v != 0); }},
    {[] { return std::int64_t{context().userEnabledCuDNN()}; }, [](std::int64_t v) { context().setUserEnabledCuDNN(v != 0); }},
    {[] { return std::int64_t{context().benchmarkCuDNN()}; }, [](std::int64_t v) { context().setBenchmarkCuDNN(v != 0); }},
    {[] { return std::int64_t{context().deterministicCuDNN()}; },
     [](std::int64_t v) { context().setDeterministicCuDNN(v != 0); }},
    {[] { return std::int64_t{context().deterministicAlgorithms()} * 2 + context().deterministicAlgorithmsWarnOnly(); },
     [](std::int64_t v) { context().setDeterministicAlgorithms(v >= 2, v % 2 != 0); }},
    {[] { return std::int64_t{context().allowFP16BF16ReductionMathSDP()}; },
     [](std::int64_t v) { context().setAllowFP16BF16ReductionMathSDP(v != 0); }},
    {[] { return std::int64_t{context().allowFP16AccumulationCuBLAS()}; },
     [](std::int64_t v) { context().setAllowFP16AccumulationCuBLAS(v != 0); }},
    {[] { return static_cast<std::int64_t>(context().allowFP16ReductionCuBLAS()); },
     [](std::int64_t v) { reduced_precision(v, &at::Context::setAllowFP16ReductionCuBLAS); }},
    {[] { return static_cast<std::int64_t>(context().allowBF16ReductionCuBLAS()); },
     [](std::int64_t v) { reduced_precision(v, &at::Context::setAllowBF16ReductionCuBLAS); }},
    {[] { return static_cast<std::int64_t>(context().blasPreferredBackend()); },
     [](std::int64_t v) { context().setBlasPreferredBackend(static_cast<at::BlasBackend>(v)); }},
    {[] { return static_cast<std::int64_t>(context().linalgPreferredBackend()); },
     [](std::int64_t v) { context().setLinalgPreferredBackend(static_cast<at::LinalgBackend>(v)); }},
    {[] { return std::int64_t{context().allowFP16ReductionCPU()}; },
     [](std::int64_t v) { context().setAllowFP16ReductionCPU(v != 0); }},
    {attention, set_attention},
    precision<B::CUDA, O::MATMUL>(),
    precision<B::CUDA, O::CONV>(),
    precision<B::CUDA, O::RNN>(),
    precision<B::MKLDNN, O::MATMUL>(),
    precision<B::MKLDNN, O::CONV>(),
    precision<B::MKLDNN, O::RNN>(),
};
constexpr std::size_t kCount = std::size(kSettings);
static_assert(kCount <= Conditions::kMost);

using Values = std::array<std::int64_t, Conditions::kMost>;

void set(const Values& from, const Values& to, std::size_t first, std::size_t last) {
  for (std::size_t i = first; i < last; ++i) {
    if (from[i] != to[i]) kSettings[i].set(to[i]);
  }
}

Values found(std::size_t first, std::size_t last) {
  Values values{};
  for (std::size_t i = first; i < last; ++i) values[i] = kSettings[i].get();
  return values;
}

// The settings of the process, while something runs again: what needs other ones waits for its turn.
class ProcessSettings {
 public:
  bool are_set_aside() const noexcept { return set_aside_.load(std::memory_order_relaxed); }

  // Whether it goes over what another set needs: one on this thread, on the way to which this one is made, or one that has not
  // ended in time. `before`: those that it finds.
  bool begin(const Values& wanted, Values* before) {
    std::unique_lock lock(mutex_);
    const auto is_free = [&] { return users_ == 0 || same(asked_, wanted); };
    if (t_uses == 0) free_.wait_for(lock, kPatience, is_free);
    const bool over = !is_free();
    const Values now = *before = found(kOfThread, kCount);
    if (users_ == 0) programs_ = now;
    note_changes(now);
    set(now, wanted, kOfThread, kCount);
    asked_ = wanted;
    set_ = same(now, wanted) ? wanted : found(kOfThread, kCount);
    set_aside_.store(!same(set_, programs_));
    ++users_, ++t_uses;
    return over;
  }

  // What the program has set meanwhile stays.
  void end(const Values& before, bool over) {
    const std::lock_guard lock(mutex_);
    --t_uses;
    const bool last = --users_ == 0;
    if (last) free_.notify_all();
    if (last ? !set_aside_.load() : !over) return;
    const Values now = found(kOfThread, kCount);
    note_changes(now);
    const Values& then = last ? programs_ : before;
    for (std::size_t i = kOfThread; i < kCount; ++i) {
      if (now[i] == then[i] || now[i] != set_[i]) continue;
      kSettings[i].restore != nullptr ? kSettings[i].restore(then[i]) : kSettings[i].set(then[i]);
    }
    asked_ = then;
    set_ = found(kOfThread, kCount);
    set_aside_.store(!last);
  }

 private:
  static constexpr std::chrono::seconds kPatience{10};

  static bool same(const Values& one, const Values& other) {
    return std::equal(one.begin() + kOfThread, one.begin() + kCount, other.begin() + kOfThread);
  }
  // Whatever is not as it was set the program has set.
  void note_changes(const Values& now) {
    for (std::size_t i = kOfThread; i < kCount && users_ > 0; ++i) {
      if (now[i] != set_[i]) programs_[i] = now[i];
    }
  }

  std::mutex mutex_;  // nothing is taken with it
  std::condition_variable free_;
  std::atomic<bool> set_aside_{false};
  std::size_t users_ = 0;
  static thread_local std::size_t t_uses;
  Values programs_{}, asked_{}, set_{};  // set: as it came out
};

thread_local std::size_t ProcessSettings::t_uses = 0;

ProcessSettings& process_settings() {
  static auto* const one = new ProcessSettings;  // never destroyed: threads may outlive the process's end
  return *one;
}

}  // namespace

bool Conditions::are_set_aside() noexcept { return process_settings().are_set_aside(); }

bool Conditions::floats_are_usual() {
#if defined(__SSE__)
  constexpr std::int64_t kUsual = 0x1F80;
  return float_control() == kUsual;
#else
  return true;
#endif
}

Conditions Conditions::now() {
  Conditions conditions;
  conditions.values_ = found(0, kCount);
  return conditions;
}

Conditions::Guard::Guard(const Conditions& wanted) : wanted_(wanted), of_thread_(found(0, kOfThread)) {
  set(of_thread_, wanted_.values_, 0, kOfThread);
  over_ = process_settings().begin(wanted_.values_, &of_process_);
}

Conditions::Guard::~Guard() {
  process_settings().end(of_process_, over_);
  set(wanted_.values_, of_thread_, 0, kOfThread);
}

}  // namespace vt
