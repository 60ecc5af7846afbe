#include "torch/torch_traits.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <string_view>

#include "iteration/operators.h"
#include "torch/torch_kernels.h"

namespace vt {

namespace {

template <std::size_t N>
bool is_one_of(std::string_view name, const std::array<std::string_view, N>& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Memory that nobody wrote, or as good as: made to be filled.
constexpr std::array<std::string_view, 18> kUnspecified = {
    "aten::empty",          "aten::empty_like",      "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided",
    "aten::empty_permuted", "aten::empty_quantized", "aten::zeros",         "aten::zeros_like", "aten::new_zeros",
    "aten::ones",           "aten::ones_like",       "aten::new_ones",      "aten::full",       "aten::full_like",
    "aten::new_full",       "aten::_empty_affine_quantized", "aten::_empty_per_channel_affine_quantized"};
// They ask their argument for its sizes, and read nothing of it.
constexpr std::array<std::string_view, 12> kOnlySizes = {
    "aten::empty_like", "aten::zeros_like",  "aten::ones_like",    "aten::full_like", "aten::rand_like", "aten::randn_like",
    "aten::new_empty",  "aten::new_zeros",   "aten::new_ones",     "aten::new_full",  "aten::randint_like",
    "aten::new_empty_strided"};
// They give their argument other memory, or another length of it.
constexpr std::array<std::string_view, 6> kReshapes = {"aten::resize_",   "aten::resize_as_",      "aten::set_",
                                                       "aten::set_data",  "aten::_resize_output_", "aten::resize"};
// They write nothing, whatever their schemas say, but how their argument sees its memory.
constexpr std::array<std::string_view, 7> kSeenOtherwise = {"aten::detach_",    "aten::squeeze_",  "aten::unsqueeze_", "aten::t_",
                                                            "aten::transpose_", "aten::swapaxes_", "aten::swapdims_"};

// They write the whole of their first argument, whatever it held.
constexpr std::array<std::string_view, 11> kFills = {"aten::bernoulli_",   "aten::uniform_", "aten::normal_", "aten::log_normal_",
                                                     "aten::exponential_", "aten::cauchy_",  "aten::geometric_", "aten::random_",
                                                     "aten::zero_",        "aten::fill_",    "aten::copy_"};

// Two runs differ although torch does not say so. gelsy begins with pivots that nobody wrote (4 of 34 samples differ in plain
// torch with what lay in memory before). The others write by index, from several threads at once: of two values for one place
// the last one stays, and sums come in any order (plain torch differs from itself in 25 of 25 sums, 155 of 304 writes).
constexpr std::array<std::string_view, 9> kUnrepeatable = {
    "aten::linalg_lstsq", "aten::index_put",  "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index_put",
    "aten::put",          "aten::put_",       "aten::index_copy", "aten::index_copy_"};
// On a GPU theirs are kernels that add from many threads at once, in any order, unless torch is told to use others
// (torch.use_deterministic_algorithms, whose documentation lists them).
constexpr std::array<std::string_view, 16> kAddsAnyhow = {
    "aten::index_add",   "aten::index_add_",   "aten::index_reduce",       "aten::index_reduce_",
    "aten::scatter_add", "aten::scatter_add_", "aten::scatter_reduce",     "aten::scatter_reduce_",
    "aten::scatter",     "aten::scatter_",     "aten::nll_loss2d_forward", "aten::_embedding_bag",
    "aten::cumsum",      "aten::cumsum_",      "aten::histc",              "aten::bincount"};
constexpr std::array<std::string_view, 19> kAddsInBackward = {  // names that begin so
    "aten::upsample_",      "aten::_upsample_",       "aten::adaptive_",          "aten::_adaptive_",
    "aten::avg_pool",       "aten::max_pool",         "aten::fractional_",        "aten::max_unpool",
    "aten::reflection_pad", "aten::replication_pad",  "aten::grid_sampler_",      "aten::_ctc_loss_",
    "aten::embedding_",     "aten::_embedding_bag_",  "aten::convolution_",       "aten::cudnn_",
    "aten::_flash_attention_", "aten::_efficient_attention_", "aten::_scaled_dot_product_"};
bool adds_anyhow(std::string_view name) {
  const auto begins = [&](std::string_view with) { return name.starts_with(with); };
  return is_one_of(name, kAddsAnyhow) ||
         (name.ends_with("_backward") && std::any_of(kAddsInBackward.begin(), kAddsInBackward.end(), begins));
}
// They go by places in the memory of their argument, of which only what its view can reach is kept.
constexpr std::array<std::string_view, 2> kByPlace = {"aten::as_strided_copy", "aten::as_strided_scatter"};

// What it makes has no memory of its own, but parts that have: indices and values, or whatever a library keeps.
bool makes_parts(const std::string& name) {
  return name.find("sparse") != std::string::npos || name.find("mkldnn") != std::string::npos ||
         name == "aten::_embedding_bag_backward";
}

// Functions that write by torch's operations only: those of torch that large programs call most, and vtensor's own
// (harmony/pipeline); and what autograd names within aten's detach. Others may hand their arguments to kernels that nobody sees.
constexpr std::array<std::string_view, 13> kWriteSeen = {
    "CompiledFunction",             "CheckpointFunction", "BackwardHookFunction", "_DDPSink", "RegisterPreBackwardFunction",
    "RegisterPostBackwardFunction", "_ToTorchTensor",     "_FromTorchTensor",     "Redistribute", "_Call", "_Enter",
    "detach",                       "detach_"};

std::uint32_t generator_argument(const c10::FunctionSchema& schema) {
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    if (schema.arguments()[i].name() == "generator") return static_cast<std::uint32_t>(i);
  }
  return kNone;
}

// Whether it can be run again.
void judge(const c10::FunctionSchema& schema, const std::optional<c10::OperatorHandle>& handle, Kernels kernels, Traits* traits) {
  bool lists_written = false;
  for (const auto& argument : schema.arguments()) {
    const c10::AliasInfo* alias = argument.alias_info();
    lists_written |= alias != nullptr && alias->isWrite() && argument.type()->kind() == c10::TypeKind::ListType;
  }
  for (const auto& returned : schema.returns()) {
    if (returned.alias_info() != nullptr) continue;
    traits->fresh_lists |= returned.type()->kind() == c10::TypeKind::ListType;
    traits->fresh += returned.type()->kind() == c10::TypeKind::TensorType;
  }
  const std::string& name = schema.name();
  traits->fills = is_one_of(name, kFills);
  traits->adds_anyhow = adds_anyhow(name);
  traits->draws = handle && handle->hasTag(at::Tag::nondeterministic_seeded);
  if (traits->draws) traits->generator = generator_argument(schema);
  if (kernels != Kernels::torchs) {
    traits->again = Again::custom;
  } else if (traits->draws && traits->generator == kNone) {
    traits->again = Again::random;
  } else if (handle->hasTag(at::Tag::nondeterministic_bitwise) || is_one_of(name, kUnrepeatable)) {
    traits->again = Again::unrepeatable;
  } else if (lists_written || std::popcount(traits->written) > 1) {
    traits->again = Again::several;
  } else if (is_one_of(name, kReshapes) || is_one_of(name, kByPlace)) {
    traits->again = Again::reshapes;
  } else if (makes_parts(name)) {
    traits->again = Again::parts;
  } else {
    traits->again = is_one_of(name, kUnspecified) ? Again::unspecified : Again::yes;
  }
}

Traits of_range(const char* name) {
  static const OpId range = operator_id("(range)");  // not its name: some count the steps in theirs
  Traits traits{name};
  traits.id = range;
  traits.named = traits.skip_arguments = traits.transparent = true;
  traits.may_write = ~std::uint64_t{0};
  traits.writes_seen = is_one_of(name, kWriteSeen);
  return traits;
}

Traits of_operator(const at::RecordFunction& function, const c10::FunctionSchema& schema) {
  Traits traits{function.name(), function.overload_name()};
  traits.id = operator_id(schema.overload_name().empty() ? schema.name() : schema.name() + "." + schema.overload_name());
  const auto& arguments = schema.arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::AliasInfo* alias = arguments[i].alias_info();
    if (alias != nullptr && alias->isWrite()) traits.written |= std::uint64_t{1} << std::min<std::size_t>(i, 63);
  }
  if (is_one_of(schema.name(), kSeenOtherwise)) traits.written = 0;
  const auto handle = c10::Dispatcher::singleton().findSchema(schema.operator_name());
  // Some are composite only where no backend has a kernel of its own (silu_backward): with one, they read their arguments.
  static constexpr c10::DispatchKeySet kBackends({c10::DispatchKey::CPU, c10::DispatchKey::CUDA, c10::DispatchKey::MkldnnCPU,
                                                  c10::DispatchKey::SparseCPU, c10::DispatchKey::SparseCUDA,
                                                  c10::DispatchKey::SparseCsrCPU, c10::DispatchKey::SparseCsrCUDA,
                                                  c10::DispatchKey::QuantizedCPU, c10::DispatchKey::QuantizedCUDA});
  const bool composite = handle && handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
                         !handle->hasKernelForAnyDispatchKey(kBackends);
  // Only torch's own: a user's operator registered without a key looks the same and may read raw pointers.
  const Kernels kernels = kernels_of(schema, handle);
  traits.transparent = composite && kernels != Kernels::foreign;
  bool view = !composite && traits.written == 0 && !schema.returns().empty();
  for (const auto& returned : schema.returns()) view = view && returned.alias_info() != nullptr;
  traits.skip_arguments = traits.transparent || view;
  traits.only_sizes = kernels == Kernels::torchs && is_one_of(schema.name(), kOnlySizes);
  traits.keeps_arguments = schema.name().starts_with("c10d::");
  // Where a write cannot be noticed by itself, only operators whose schemas are known to tell all are taken at their word. That
  // of batch_norm hides one thing.
  const bool tells_all = kernels != Kernels::foreign && schema.name().find("rnn") == std::string::npos;
  traits.may_write = tells_all ? traits.written : ~std::uint64_t{0};
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = arguments[i].name();
    if (name != "running_mean" && name != "running_var") continue;
    const std::uint64_t bit = std::uint64_t{1} << std::min<std::size_t>(i, 63);
    traits.may_write |= bit;
    traits.written &= ~bit;  // newer schemas say so: it is not what they make
  }
  traits.cast_on_cpu = handle && handle->hasKernelForDispatchKey(c10::DispatchKey::AutocastCPU);
  traits.cast_on_cuda = handle && handle->hasKernelForDispatchKey(c10::DispatchKey::AutocastCUDA);
  judge(schema, handle, kernels, &traits);
  return traits;
}

// Operators of a thread. Four may share a place: to look at one takes some 40 us, and which share one is another lot in each
// process (a step of a GPT-2 of four layers looked at 22 once more, where each place had room for one). Of ranges nothing is
// kept: the name of one lies where another's lay before.
constexpr std::size_t kPlaces = 256, kShare = 4;
using Place = std::array<Traits, kShare>;
std::atomic<std::uint32_t> g_kernels{0};  // how often operators got others

// What its place does not have. Out of the way of all other calls, each of which it made 0.02 us slower.
[[gnu::noinline, gnu::cold]] const Traits& look_at(const at::RecordFunction& function, Place* place) {
  static thread_local Traits range;
  const auto schema = function.operator_schema();  // a copy: too slow for every operation
  if (!schema) return range = of_range(function.name());
  std::move_backward(place->begin(), place->end() - 1, place->end());
  return place->front() = of_operator(function, *schema);
}

}  // namespace

void look_again() noexcept { g_kernels.fetch_add(1); }

const Traits& traits_of(const at::RecordFunction& function) {
  static thread_local std::array<Place, kPlaces> places;
  static thread_local std::uint32_t kernels = 0;
  if (const auto now = g_kernels.load(std::memory_order_relaxed); now != kernels) {
    places.fill({});
    kernels = now;
  }
  const char* name = function.name();
  const char* overload = function.overload_name();
  Place& place = places[(reinterpret_cast<std::uintptr_t>(name) >> 5) % kPlaces];
  for (const Traits& known : place) {
    if (known.name == name && known.overload == overload) return known;
  }
  return look_at(function, &place);
}

bool writes_by_operations(const std::string& name) { return is_one_of(name, kWriteSeen); }

std::int64_t reach(const c10::TensorImpl& impl) {
  std::int64_t last = 0;
  for (std::int64_t d = 0; d < impl.dim(); ++d) {
    if (impl.sizes()[d] == 0) return 0;
    last += (impl.sizes()[d] - 1) * impl.strides()[d];
  }
  return last + 1;
}

const char* why_not(Again again) noexcept {
  switch (again) {
    case Again::yes: return "";
    case Again::unspecified: return "its result is memory to be filled, which may happen unseen";
    case Again::custom: return "not one of torch's own operators, or not with its own kernels";
    case Again::random: return "it draws random numbers from a generator that it cannot be given";
    case Again::unrepeatable: return "two runs may differ";
    case Again::several: return "it writes several tensors";
    case Again::reshapes: return "it changes the memory of its argument, or goes by places in it";
    case Again::parts: return "what it makes is sparse, or in a library's own layout";
  }
  return "";
}

}  // namespace vt
