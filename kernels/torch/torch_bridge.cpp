// See torch_bridge.h.

#include "torch/torch_bridge.h"

#include <c10/core/CPUAllocator.h>
#include <malloc.h>

#include <atomic>

#include "process/fault_handler.h"
#include "iteration/managed.h"
#include "iteration/recording.h"
#include "process/registry.h"
#include "torch/torch_observer.h"

namespace vt {

namespace {

c10::Allocator* g_base = nullptr;  // torch's own
bool g_is_malloc = false;          // whether what it gives has a size that can be asked for
std::atomic<Bytes> g_min_bytes{0};
std::atomic<std::int64_t> g_small_now{0}, g_small_peak{0}, g_small_allocated{0};

// The one deleter: managed or not is told by the address.
void free_any(void* address) {
  if (address == nullptr) return;
  if (Engine* engine = engine_of(address)) {
    c10::profiledCPUMemoryReporter().Delete(address);
    return free_managed(*engine, address);
  }
  if (g_is_malloc) g_small_now.fetch_sub(static_cast<std::int64_t>(malloc_usable_size(address)), std::memory_order_relaxed);
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
    if (!g_is_malloc || this_thread().managing == Managing::none) return small;
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
    const bool large = bytes >= g_min_bytes.load(std::memory_order_relaxed);
    return large ? this_thread().managing != Managing::none : this_thread().managing == Managing::all;
  }

  static void* managed(Engine& engine, Bytes bytes) {
    void* address = nullptr;
    try {
      address = allocate_managed(engine, bytes, current_stream(engine));
    } catch (const OutOfMemory& error) {
      // Whoever tries again with less knows torch's errors by these words (accelerate, Lightning).
      TORCH_CHECK_WITH(OutOfMemoryError, false, error.what(),
                       "\n  In torch's words: CPU out of memory. DefaultCPUAllocator: can't allocate memory.");
    }
    if (engine.pressed() && !observing()) observe_if_pressed();
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

// On AArch64 torch has mimalloc within it, since 2.10.
bool is_malloc([[maybe_unused]] const c10::Allocator* allocator) {
#if defined(__aarch64__)
  return false;
#else
  return allocator == c10::GetDefaultCPUAllocator();
#endif
}

}  // namespace

void serve_torch() {
  if (g_base == nullptr) {
    g_base = c10::GetCPUAllocator();
    g_is_malloc = is_malloc(g_base);
  }
  c10::SetCPUAllocator(&g_shim);
  if (c10::GetCPUAllocator() != &g_shim) {
    throw InvalidUse("a library has put an allocator of its own in the place of torch's, for tensors of the CPU, with a priority "
                     "that keeps others out: vtensor cannot manage them");
  }
}

void attach_torch(Bytes min_bytes, bool observe_always) {
  g_min_bytes = min_bytes;
  reset_unmanaged_peak();  // without a session torch's own are of any size
  begin_recording();
  arm_fault_handler();
  if (observe_always) observe();
}

void detach_torch() {
  stop_observing();
  record_only(nullptr);
}

void manage(Managing what) noexcept { this_thread().managing = what; }

Unmanaged unmanaged() {
  const std::int64_t now = g_small_now.load(), allocated = g_small_allocated.load();
  return {now, g_small_peak.load(), allocated, allocated - now};
}

void reset_unmanaged_peak() { g_small_peak = g_small_now.load(); }

}  // namespace vt
