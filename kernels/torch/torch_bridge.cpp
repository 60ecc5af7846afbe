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
std::atomic<Bytes> g_min_bytes{0};
std::atomic<std::int64_t> g_small_now{0}, g_small_peak{0}, g_small_allocated{0};

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
    if (this_thread().managing == Managing::none) return small;
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

}  // namespace

void attach_torch(Bytes min_bytes, bool observe_always) {
  g_min_bytes = min_bytes;
  begin_recording();
  arm_fault_handler();
  if (g_base == nullptr) g_base = c10::GetCPUAllocator();
  // For good: who allocates by raw_allocate() (mkldnn) frees by whatever allocator is there then.
  c10::SetCPUAllocator(&g_shim);
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
