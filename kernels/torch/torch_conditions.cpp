#include "torch/torch_conditions.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/ScalarTypeToTypeMeta.h>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace vt {

namespace {

struct Setting {
  std::int64_t (*get)();
  void (*set)(std::int64_t);
};

at::Context& context() { return at::globalContext(); }

template <at::Float32Backend backend, at::Float32Op op>
constexpr Setting precision() {
  return {[] { return static_cast<std::int64_t>(context().float32Precision(backend, op)); },
          [](std::int64_t v) { context().setFloat32Precision(backend, op, static_cast<at::Float32Precision>(v)); }};
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

using B = at::Float32Backend;
using O = at::Float32Op;

constexpr Setting kSettings[] = {
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
    precision<B::GENERIC, O::ALL>(),
    precision<B::CUDA, O::MATMUL>(),
    precision<B::CUDA, O::CONV>(),
    precision<B::CUDA, O::RNN>(),
    precision<B::MKLDNN, O::MATMUL>(),
    precision<B::MKLDNN, O::CONV>(),
    precision<B::MKLDNN, O::RNN>(),
};
constexpr std::size_t kCount = std::size(kSettings);
static_assert(kCount <= Conditions::kMost);

}  // namespace

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
  for (std::size_t i = 0; i < kCount; ++i) conditions.values_[i] = kSettings[i].get();
  return conditions;
}

Conditions::Guard::Guard(const Conditions& wanted) : wanted_(wanted), before_(now().values_) {
  for (std::size_t i = 0; i < kCount; ++i) {
    if (before_[i] != wanted_.values_[i]) kSettings[i].set(wanted_.values_[i]);
  }
}

Conditions::Guard::~Guard() {
  for (std::size_t i = kCount; i-- > 0;) {
    if (before_[i] != wanted_.values_[i]) kSettings[i].set(before_[i]);
  }
}

}  // namespace vt
