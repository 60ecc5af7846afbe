// See torch_bridge.h. Compiled with -DNDEBUG, as torch is: RecordFunction::inputs() asserts otherwise.

#include "torch_bridge.h"

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/core/CPUAllocator.h>
#include <malloc.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "fault_handler.h"
#include "registry.h"

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
  std::uint64_t written = 0;  // bit i: argument i is written
};

Traits examine(const at::RecordFunction& function) {
  Traits traits{function.name(), function.overload_name()};
  const auto found = function.operator_schema();  // a copy: too slow for every operation
  if (!found) {
    traits.skip_arguments = traits.transparent = true;  // a range somebody named, not an operation
    return traits;
  }
  const c10::FunctionSchema& schema = *found;
  const auto& arguments = schema.arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::AliasInfo* alias = arguments[i].alias_info();
    if (alias != nullptr && alias->isWrite()) traits.written |= std::uint64_t{1} << std::min<std::size_t>(i, 63);
  }
  const auto handle = c10::Dispatcher::singleton().findSchema(schema.operator_name());
  const bool composite = handle && handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
  // Only aten's own: a user's operator registered without a key looks the same and may read raw pointers.
  traits.transparent = composite && schema.name().starts_with("aten::");
  bool view = !composite && traits.written == 0 && !schema.returns().empty();
  for (const auto& returned : schema.returns()) view = view && returned.alias_info() != nullptr;
  traits.skip_arguments = traits.transparent || view;
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

// --- what runs on this thread ------------------------------------------------------------------------------

struct Frame {
  std::uint32_t first_use;  // index into Thread::uses
  bool transparent;
  const char* name;
};

struct Thread {
  Engine* engine = nullptr;       // the engine all of the below belong to
  std::vector<Frame> frames;      // operations under way, outermost first
  std::vector<Use> uses;          // pinned arguments of all of them
  std::vector<Use> missing;       // arguments of the newest that are not wholly resident
  std::vector<Range*> newborns;   // allocated inside the outermost operation that is not transparent
  bool all_sizes = false;         // manage small allocations too
  std::uint32_t solid = 0;        // operations under way that are not transparent
};

constinit thread_local Thread* t_mine = nullptr;  // a plain pointer: no guard on the hot path

// Ends this_thread() with its thread. Tensors may die even later (other thread-local caches hold some); for them a
// second Thread is made, and left.
struct ThreadOwner {
  ~ThreadOwner() {
    delete t_mine;
    t_mine = nullptr;
  }
};

Thread& this_thread() {
  if (t_mine == nullptr) {
    t_mine = new Thread;
    static thread_local ThreadOwner owner;
    (void)owner;
  }
  return *t_mine;
}

const char* operation_name(const Thread& thread) {
  return thread.frames.empty() ? nullptr : thread.frames.back().name;
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
  } else {
    thread.missing.push_back(extent(engine, *range, *impl, storage, write));
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
  // An operation that itself enabled vtensor ends before it is observed: nested in it, nothing is.
  const bool observe = engine != nullptr && engine == thread.engine;
  const bool transparent = traits.transparent || !observe;
  thread.frames.push_back({static_cast<std::uint32_t>(thread.uses.size()), transparent, traits.name});
  thread.solid += !transparent;
  if (!observe || traits.skip_arguments) return nullptr;
  engine->tick();
  std::size_t index = 0;
  for (const c10::IValue& input : function.inputs()) {
    visit(thread, input, (traits.written >> std::min<std::size_t>(index, 63) & 1) != 0);
    ++index;
  }
  if (!thread.missing.empty()) {
    arm_fault_handler();
    engine->pin_and_fetch(thread.missing, operation_name(thread));
    thread.uses.insert(thread.uses.end(), thread.missing.begin(), thread.missing.end());
    thread.missing.clear();
  }
  return nullptr;
}

void on_end(const at::RecordFunction&, at::ObserverContext*) {
  Thread& thread = this_thread();
  if (thread.frames.empty()) return;
  const Frame frame = thread.frames.back();
  thread.frames.pop_back();
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

// --- the allocator -----------------------------------------------------------------------------------------

c10::Allocator* g_base = nullptr;  // torch's own
std::mutex g_observer_mutex;
std::atomic<at::CallbackHandle> g_observer{at::INVALID_CALLBACK_HANDLE};
std::atomic<Bytes> g_min_bytes{0};
std::atomic<std::int64_t> g_small_now{0}, g_small_peak{0}, g_small_allocated{0};

void free_managed(Engine& engine, void* address) {
  Thread& thread = this_thread();
  if (!thread.newborns.empty()) {
    // A temporary of a running operation: it needs no pin any more. It is among the newest, so search backwards.
    Range* range = engine.find(address);
    const auto found = std::find(thread.newborns.rbegin(), thread.newborns.rend(), range);
    if (found != thread.newborns.rend()) {
      range->pins.fetch_sub(1);
      thread.newborns.erase(std::next(found).base());
    }
  }
  engine.free(address);
}

// The one deleter: managed or not is told by the address.
void free_any(void* address) {
  if (address == nullptr) return;
  c10::profiledCPUMemoryReporter().Delete(address);
  if (Engine* engine = engine_of(address)) return free_managed(*engine, address);
  g_small_now.fetch_sub(static_cast<std::int64_t>(malloc_usable_size(address)), std::memory_order_relaxed);
  g_base->raw_deleter()(address);
}

class Shim final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    Engine* engine = current_engine();
    if (engine != nullptr && wanted(bytes)) {
      if (void* address = managed(*engine, bytes)) {
        c10::profiledCPUMemoryReporter().New(address, bytes);
        return {address, address, &free_any, c10::Device(c10::kCPU)};
      }
    }
    c10::DataPtr small = g_base->allocate(bytes);
    void* address = small.get();
    if (address == nullptr || small.get_context() != address) return small;
    count_small(address);
    small.release_context();
    return {address, address, &free_any, c10::Device(c10::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &free_any; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  static bool wanted(Bytes bytes) {
    if (bytes == 0 || in_forked_child()) return false;
    return bytes >= g_min_bytes.load(std::memory_order_relaxed) || this_thread().all_sizes;
  }

  static void* managed(Engine& engine, Bytes bytes) {
    Thread& thread = this_thread();
    void* address = nullptr;
    try {
      address = engine.allocate(bytes, operation_name(thread));
    } catch (const OutOfMemory& error) {
      TORCH_CHECK_WITH(OutOfMemoryError, false, error.what());
    }
    if (engine.pressed() && !observing()) observe_if_pressed();
    if (address != nullptr && thread.solid > 0 && thread.engine == &engine) {
      Range* range = engine.find(address);
      engine.pin_newborn(*range);
      thread.newborns.push_back(range);
    }
    return address;
  }

  static void count_small(void* address) {
    const auto bytes = static_cast<std::int64_t>(malloc_usable_size(address));
    const auto now = g_small_now.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    g_small_allocated.fetch_add(bytes, std::memory_order_relaxed);
    if (now > g_small_peak.load(std::memory_order_relaxed)) g_small_peak.store(now, std::memory_order_relaxed);
  }
};

Shim g_shim;

void observe() {
  if (observing()) return;
  std::lock_guard lock(g_observer_mutex);
  if (observing()) return;
  g_observer = at::addGlobalCallback(
      at::RecordFunctionCallback(on_begin, on_end).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

}  // namespace

void attach_torch(Bytes min_bytes, bool observe_always) {
  g_min_bytes = min_bytes;
  arm_fault_handler();
  if (g_base == nullptr) g_base = c10::GetCPUAllocator();
  c10::SetCPUAllocator(&g_shim);
  if (observe_always) observe();
}

void observe_if_pressed() {
  const Engine* engine = current_engine();
  if (engine != nullptr && engine->pressed()) observe();
}

bool observing() noexcept { return g_observer.load() != at::INVALID_CALLBACK_HANDLE; }

void detach_torch() {
  std::lock_guard lock(g_observer_mutex);
  c10::SetCPUAllocator(g_base);
  if (observing()) at::removeCallback(g_observer.exchange(at::INVALID_CALLBACK_HANDLE));
}

void manage_all_sizes(bool all) noexcept { this_thread().all_sizes = all; }

Unmanaged unmanaged() {
  const std::int64_t now = g_small_now.load(), allocated = g_small_allocated.load();
  return {now, g_small_peak.load(), allocated, allocated - now};
}

void reset_unmanaged_peak() { g_small_peak = g_small_now.load(); }

}  // namespace vt
