// The observer: what torch's operations are about to use. Compiled with -DNDEBUG, as torch is: RecordFunction::inputs()
// asserts otherwise.

#include "torch/torch_observer.h"

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>

#include "process/fault_handler.h"
#include "process/registry.h"
#include "iteration/thread_state.h"

namespace vt {

namespace {

// --- what an operator does with its arguments, looked up once per operator ---------------------------------

struct Traits {
  // The operator's name and overload, told apart by address: both strings live inside its one schema.
  const char* name = nullptr;
  const char* overload = nullptr;
  // Its arguments are not read by it (a view), or only by the operators it is made of.
  bool skip_arguments = false;
  // It is made of other operators wholly: it holds no memory between them, so it pins nothing for its length.
  // (One whole LSTM would otherwise keep all its steps in memory.)
  bool transparent = false;
  // A range of the program somebody named, no operation. A torch.autograd.Function is one with arguments, which its kernels may read
  // without telling.
  bool named = false;
  // It goes on using its arguments after it returned, on a stream of its own (NCCL) or by system calls (gloo): they stay where they are.
  bool keeps_arguments = false;
  std::uint64_t written = 0;    // bit i: argument i is written, by the schema's word
  std::uint64_t may_write = 0;  // the same, and all of an operator whose schema may not say it
  OpId id = 0;
};

Traits examine(const at::RecordFunction& function) {
  Traits traits{function.name(), function.overload_name()};
  const auto found = function.operator_schema();  // a copy: too slow for every operation
  if (!found) {
    traits.named = traits.skip_arguments = traits.transparent = true;
    traits.may_write = ~std::uint64_t{0};
    return traits;
  }
  const c10::FunctionSchema& schema = *found;
  traits.id = operator_id(schema.overload_name().empty() ? schema.name() : schema.name() + "." + schema.overload_name());
  const auto& arguments = schema.arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::AliasInfo* alias = arguments[i].alias_info();
    if (alias != nullptr && alias->isWrite()) traits.written |= std::uint64_t{1} << std::min<std::size_t>(i, 63);
  }
  const auto handle = c10::Dispatcher::singleton().findSchema(schema.operator_name());
  // Some are composite only where no backend has a kernel of its own (silu_backward): with one, they read their arguments.
  static constexpr c10::DispatchKeySet kBackends({c10::DispatchKey::CPU, c10::DispatchKey::CUDA, c10::DispatchKey::MkldnnCPU,
                                                  c10::DispatchKey::SparseCPU, c10::DispatchKey::SparseCUDA,
                                                  c10::DispatchKey::SparseCsrCPU, c10::DispatchKey::SparseCsrCUDA,
                                                  c10::DispatchKey::QuantizedCPU, c10::DispatchKey::QuantizedCUDA});
  const bool composite = handle && handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
                         !handle->hasKernelForAnyDispatchKey(kBackends);
  // Only aten's own: a user's operator registered without a key looks the same and may read raw pointers.
  traits.transparent = composite && schema.name().starts_with("aten::");
  bool view = !composite && traits.written == 0 && !schema.returns().empty();
  for (const auto& returned : schema.returns()) view = view && returned.alias_info() != nullptr;
  traits.skip_arguments = traits.transparent || view;
  traits.keeps_arguments = schema.name().starts_with("c10d::");
  // Where a write cannot be noticed by itself, only operators whose schemas are known to tell all are taken at their word.
  const bool tells_all = schema.name().starts_with("aten::") && schema.name().find("batch_norm") == std::string::npos &&
                         schema.name().find("rnn") == std::string::npos;
  traits.may_write = tells_all ? traits.written : ~std::uint64_t{0};
  return traits;
}

const Traits& traits_of(const at::RecordFunction& function) {
  static constexpr std::size_t kEntries = 1024;  // direct-mapped, per thread: a hit is two compares
  static thread_local std::array<Traits, kEntries> cache;
  const char* name = function.name();
  const char* overload = function.overload_name();
  Traits& entry = cache[(reinterpret_cast<std::uintptr_t>(name) >> 5) % kEntries];
  if (entry.name != name || entry.overload != overload) entry = examine(function);
  return entry;
}

// --- the observer ------------------------------------------------------------------------------------------

// The part of its storage a dense tensor can reach; the whole range where that is not known.
Use extent(Engine& engine, Range& range, const c10::TensorImpl& tensor, const void* storage, bool write) {
  Use all = engine.whole(range, write);
  all.whole = false;
  if (tensor.has_symbolic_sizes_strides() || tensor.is_nested()) return all;
  std::int64_t last = tensor.storage_offset();
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return engine.part(range, 0, 0, write);
    last += (sizes[d] - 1) * strides[d];
  }
  const Bytes item = tensor.itemsize();
  const Bytes start = reinterpret_cast<Address>(storage) - range.base;
  return engine.part(range, start + static_cast<Bytes>(tensor.storage_offset()) * item,
                     start + static_cast<Bytes>(last + 1) * item, write);
}

void visit(Thread& thread, const at::Tensor& tensor, bool write) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (!impl->has_storage()) {
    if (!tensor.defined()) return;
    if (tensor.is_sparse()) {
      const auto* sparse = static_cast<const at::SparseTensorImpl*>(impl);
      visit(thread, sparse->indices(), write);
      visit(thread, sparse->values(), write);
    } else if (impl->is_sparse_compressed()) {
      const auto* sparse = static_cast<const at::SparseCsrTensorImpl*>(impl);
      visit(thread, sparse->compressed_indices(), write);
      visit(thread, sparse->plain_indices(), write);
      visit(thread, sparse->values(), write);
    }
    return;
  }
  const void* storage = impl->unsafe_storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get();
  Engine& engine = *thread.engine;
  if (!engine.contains(storage)) return;
  Range* range = engine.find(storage);
  if (range == nullptr) return;
  if (engine.try_pin(*range, write)) {
    thread.uses.push_back(engine.whole(*range, write));
    if (thread.records) {
      const bool one = range->chunks == 1;
      thread.seen.push_back(one ? engine.whole(*range, write) : extent(engine, *range, *impl, storage, write));
    }
  } else {
    thread.missing.push_back(extent(engine, *range, *impl, storage, write));
    if (thread.records) thread.seen.push_back(thread.missing.back());
  }
}

void visit(Thread& thread, const c10::IValue& value, bool write) {
  if (value.isTensor()) {
    visit(thread, value.toTensor(), write);
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) {
      if (item.isInt() || item.isDouble() || item.isBool()) return;  // a list of numbers
      visit(thread, item, write);
    }
  } else if (value.isTuple()) {
    for (const c10::IValue& item : value.toTupleRef().elements()) visit(thread, item, write);
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) visit(thread, entry.value(), write);
  }
}

std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction& function) {
  Thread& thread = this_thread();
  Engine* engine = current_engine();
  const Traits& traits = traits_of(function);
  if (thread.frames.empty()) thread.engine = engine;
  Streams* streams = engine != nullptr ? engine->streams() : nullptr;
  // An operation that itself enabled vtensor ends before it is observed: nested in it, nothing is.
  const bool observe = engine != nullptr && engine == thread.engine && !(streams != nullptr && in_forked_child());
  const bool transparent = traits.transparent || !observe;
  const auto stream = observe ? current_stream(*engine) : Ticket::Lane::none;
  thread.frames.push_back({static_cast<std::uint32_t>(thread.uses.size()), transparent, traits.name, traits.id, kNone, stream});
  thread.solid += !transparent;
  const bool unseen = observe && traits.named && streams != nullptr && !function.inputs().empty();
  if (!observe || (traits.skip_arguments && !unseen)) return nullptr;
  engine->tick();
  thread.missing.clear();  // left over if the operation before this one failed here
  thread.seen.clear();
  thread.records = !traits.named && recorded(thread);
  const std::uint64_t written = streams != nullptr ? traits.may_write : traits.written;
  std::size_t index = 0;
  for (const c10::IValue& input : function.inputs()) {
    visit(thread, input, (written >> std::min<std::size_t>(index, 63) & 1) != 0);
    ++index;
  }
  if (!thread.seen.empty()) {
    if (const Recording recording{thread}) {
      begin_row(recording, thread, *engine, stream);
      for (const Use& use : thread.seen) recording->use(*use.range, use);
    }
    thread.seen.clear();
  }
  if (!thread.missing.empty()) {
    const Stall stall(thread);
    arm_fault_handler();
    engine->pin_and_fetch(thread.missing, operation_name(thread));
    thread.uses.insert(thread.uses.end(), thread.missing.begin(), thread.missing.end());
    thread.missing.clear();
  }
  // A graph that is captured uses these addresses for good.
  if (traits.keeps_arguments || (streams != nullptr && stream == Ticket::Lane::none)) {
    for (std::size_t i = thread.frames.back().first_use; i < thread.uses.size(); ++i) {
      engine->fix_address(reinterpret_cast<const void*>(thread.uses[i].range->base));
    }
  }
  if (stream != Ticket::Lane::none) {
    for (std::size_t i = thread.frames.back().first_use; i < thread.uses.size(); ++i) {
      streams->ready_on(stream, *thread.uses[i].range);
    }
  }
  return nullptr;
}

// What the operation was asked to do on its stream is asked now: whoever moves its arguments comes after it.
void note_uses(Thread& thread, const Frame& frame) {
  Streams& streams = *thread.engine->streams();
  for (std::size_t i = frame.first_use; i < thread.uses.size(); ++i) {
    streams.used_on(frame.stream, *thread.uses[i].range);
  }
  if (thread.solid == 1 && !frame.transparent) {
    for (Range* range : thread.newborns) streams.used_on(frame.stream, *range);
    streams.pulse(frame.stream);
  }
}

void on_end(const at::RecordFunction&, at::ObserverContext*) {
  Thread& thread = this_thread();
  if (thread.frames.empty()) return;
  const Frame frame = thread.frames.back();
  thread.frames.pop_back();
  if (frame.row != kNone && !frame.transparent) {
    if (const Recording recording{thread}) recording->row_ends(frame.row);
  }
  if (frame.stream != Ticket::Lane::none) note_uses(thread, frame);
  while (thread.uses.size() > frame.first_use) {
    thread.engine->unpin(thread.uses.back());
    thread.uses.pop_back();
  }
  thread.solid -= !frame.transparent;
  if (thread.solid == 0 && !thread.newborns.empty()) {
    for (Range* range : thread.newborns) range->pins.fetch_sub(1);
    thread.newborns.clear();
  }
}

std::mutex g_mutex;
std::atomic<at::CallbackHandle> g_observer{at::INVALID_CALLBACK_HANDLE};

}  // namespace

bool observing() noexcept { return g_observer.load() != at::INVALID_CALLBACK_HANDLE; }

void observe() {
  if (observing()) return;
  std::lock_guard lock(g_mutex);
  if (observing()) return;
  g_observer = at::addGlobalCallback(
      at::RecordFunctionCallback(on_begin, on_end).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

void observe_if_pressed() {
  const Engine* engine = current_engine();
  if (engine != nullptr && engine->pressed()) observe();
}

void stop_observing() {
  std::lock_guard lock(g_mutex);
  if (observing()) at::removeCallback(g_observer.exchange(at::INVALID_CALLBACK_HANDLE));
}

}  // namespace vt
