// See torch_cuda.h. Written against torch 2.11 to 2.15: what differs between them is marked with VT_SINCE.

#include "torch/torch_cuda.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/headeronly/version.h>

#include <atomic>
#include <utility>

#include "iteration/managed.h"
#include "iteration/recording.h"
#include "process/registry.h"
#include "torch/torch_observer.h"

#define VT_SINCE(major, minor) \
  (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

namespace vt {

namespace {

namespace cca = c10::cuda::CUDACachingAllocator;
using c10::DeviceIndex;
using c10::MempoolId_t;

cca::CUDAAllocator* g_native = nullptr;  // torch's own; its address never changes
std::atomic<Bytes> g_min_bytes{0};
std::atomic<int> g_ordinal{-1};  // -1: nothing is managed
std::atomic<int> g_pools{0};     // torch's MemPools in use: what is allocated meanwhile is meant for them
std::atomic<Engine*> g_makes_nothing{nullptr};  // nothing is dropped there while one is in use

// The engine of a managed address: the current one, or one of an earlier session.
Engine* owner_of(const void* address) { return address == nullptr ? nullptr : engine_of(address); }

// Another library's: torch names these by their addresses.
bool is_foreign(c10::cuda::CUDAStream stream) {
  return stream.stream() != nullptr && stream.id() == reinterpret_cast<c10::StreamId>(stream.stream());
}

Lane lane_of(Engine& engine, c10::cuda::CUDAStream stream) {
  struct Known {
    Engine* engine = nullptr;
    c10::StreamId stream = 0;
    Lane lane = Lane::none;
  };
  static thread_local Known known;  // most threads use one stream
  if (known.engine != &engine || known.stream != stream.id()) {
    known = {&engine, stream.id(), engine.streams()->lane(stream.stream(), is_foreign(stream))};
  }
  return known.lane;
}

bool capturing() { return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None; }

Lane lane_of_this_thread(Engine& engine) {
  const int ordinal = g_ordinal.load(std::memory_order_relaxed);
  // Events of others have no place in a graph that is being captured; what it uses must be resident before (data_ptr() keeps it
  // so).
  if (ordinal < 0 || capturing()) return Lane::none;
  return lane_of(engine, c10::cuda::getCurrentCUDAStream(static_cast<DeviceIndex>(ordinal)));
}

// The one deleter: managed or not is told by the address.
void free_any(void* address) {
  if (Engine* engine = owner_of(address)) {
    free_managed(*engine, address);
  } else if (address != nullptr) {
    g_native->raw_deleter()(address);
  }
}

// Graphs' pools ask whether what frees a tensor is raw_deleter().
void freed_by_us(c10::DataPtr& native) { (void)native.compare_exchange_deleter(g_native->raw_deleter(), &free_any); }

class Allocator final : public cca::CUDAAllocator {
 public:
  // --- what differs ------------------------------------------------------------------------------------------
  c10::DataPtr allocate(std::size_t bytes) override {
    const auto device = c10::cuda::current_device();
    if (wanted(bytes, device)) {
      if (void* address = managed(bytes, c10::cuda::getCurrentCUDAStream(device))) {
        return {address, address, &free_any, c10::Device(c10::kCUDA, device)};
      }
    }
    c10::DataPtr native = g_native->allocate(bytes);
    freed_by_us(native);
    return native;
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_any; }
  void raw_delete(void* address) override {
    if (owner_of(address) != nullptr) {
      free_any(address);
    } else {
      g_native->raw_delete(address);
    }
  }
  void* getBaseAllocation(void* address, std::size_t* bytes) override {
    Engine* engine = owner_of(address);
    if (engine == nullptr) return g_native->getBaseAllocation(address, bytes);
    const Range* range = engine->find(address);
    if (bytes != nullptr) *bytes = range->bytes;
    return reinterpret_cast<void*>(range->base);
  }
  void recordStream(const c10::DataPtr& pointer, c10::cuda::CUDAStream stream) override {
    if (Engine* engine = owner_of(pointer.get())) {
      engine->streams()->record(pointer.get(), lane_of(*engine, stream));
    } else if (pointer.get_deleter() != &free_any) {
      g_native->recordStream(pointer, stream);
    } else {  // it does nothing for a pointer that another than itself frees
      struct Lent {
        c10::DataPtr pointer;
        ~Lent() { (void)pointer.release_context(); }
      } lent{c10::DataPtr(pointer.get(), pointer.get_context(), g_native->raw_deleter(), pointer.device())};
      g_native->recordStream(lent.pointer, stream);
    }
  }
  cca::ShareableHandle shareIpcHandle(void* address) override {
    TORCH_CHECK(owner_of(address) == nullptr,
                "vtensor: a managed CUDA tensor cannot be shared with another process, as its memory moves; share a copy "
                "of it in the processor's memory (tensor.cpu()), or raise min_size= above its bytes.");
    return g_native->shareIpcHandle(address);
  }
  // Between devices that cannot reach each other, only memory of cudaMalloc may be copied as if they could.
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, std::size_t bytes, cudaStream_t stream,
                          bool peers) override {
    if (to_device != from_device && !peers && (owner_of(to) != nullptr || owner_of(from) != nullptr)) {
      return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
    }
    return g_native->memcpyAsync(to, to_device, from, from_device, bytes, stream, peers);
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { g_native->copy_data(to, from, bytes); }
  std::string name() override { return g_native->name(); }

  // --- what is torch's ---------------------------------------------------------------------------------------
  void* raw_alloc(std::size_t bytes) override { return g_native->raw_alloc(bytes); }
  void* raw_alloc_with_stream(std::size_t bytes, cudaStream_t stream) override {
    return g_native->raw_alloc_with_stream(bytes, stream);
  }
  void init(int devices) override { g_native->init(devices); }
  bool initialized() override { return g_native->initialized(); }
  double getMemoryFraction(DeviceIndex device) override { return g_native->getMemoryFraction(device); }
  void setMemoryFraction(double fraction, DeviceIndex device) override { g_native->setMemoryFraction(fraction, device); }
  std::vector<cca::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex device) override {
    return g_native->getExpandableSegmentSizes(device);
  }
  void enable(bool value) override { g_native->enable(value); }
  bool isEnabled() const override { return g_native->isEnabled(); }
  void emptyCache(MempoolId_t pool) override { g_native->emptyCache(pool); }
  void cacheInfo(DeviceIndex device, std::size_t* largest) override { g_native->cacheInfo(device, largest); }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override {
    return g_native->getDeviceStats(device);
  }
  void resetAccumulatedStats(DeviceIndex device) override { g_native->resetAccumulatedStats(device); }
  void resetPeakStats(DeviceIndex device) override { g_native->resetPeakStats(device); }
  std::pair<std::size_t, std::size_t> getMemoryInfo(DeviceIndex device) override { return g_native->getMemoryInfo(device); }
  cca::SnapshotInfo snapshot(MempoolId_t pool, bool traces) override { return g_native->snapshot(pool, traces); }
  void beginAllocateToPool(DeviceIndex device, MempoolId_t pool, std::function<bool(cudaStream_t)> filter) override {
    const bool first = g_pools++ == 0;
    if (Engine* engine = current_engine(); engine != nullptr && !in_forked_child()) {
      if (first && engine->remake().on()) {  // what was recomputed in between would be the graph's
        g_makes_nothing = engine;
        engine->remake().suspend(false);
      }
      engine->streams()->before_capture();
    }
    g_native->beginAllocateToPool(device, pool, std::move(filter));
  }
  void endAllocateToPool(DeviceIndex device, MempoolId_t pool) override {
    g_native->endAllocateToPool(device, pool);
    int before = g_pools.load();  // 0 where the session began within it
    while (before > 0 && !g_pools.compare_exchange_weak(before, before - 1)) {
    }
    if (before != 1) return;
    Engine* engine = g_makes_nothing.exchange(nullptr);
    if (engine != nullptr && engine == current_engine() && !in_forked_child()) engine->remake().resume();
  }
  void releasePool(DeviceIndex device, MempoolId_t pool) override { g_native->releasePool(device, pool); }
  int getPoolUseCount(DeviceIndex device, MempoolId_t pool) override { return g_native->getPoolUseCount(device, pool); }
  void createOrIncrefPool(DeviceIndex device, MempoolId_t pool, std::shared_ptr<cca::CUDAAllocator> allocator) override {
    g_native->createOrIncrefPool(device, pool, std::move(allocator));
  }
  void setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool use) override { g_native->setUseOnOOM(device, pool, use); }
  void setNoSplit(DeviceIndex device, MempoolId_t pool) override { g_native->setNoSplit(device, pool); }
  bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t pool, const std::unordered_set<void*>& expected) override {
    return g_native->checkPoolLiveAllocations(device, pool, expected);
  }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override { return g_native->getIpcDevPtr(std::move(handle)); }
  bool isHistoryEnabled() override { return g_native->isHistoryEnabled(); }
  void recordHistory(bool enabled, cca::CreateContextFn recorder, std::size_t entries, cca::RecordContext when, bool clear,
                     const std::vector<std::string>& skip) override {
    g_native->recordHistory(enabled, recorder, entries, when, clear, skip);
  }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& about) override {
    g_native->recordAnnotation(about);
  }
  void pushCompileContext(std::string& context) override { g_native->pushCompileContext(context); }
  void popCompileContext() override { g_native->popCompileContext(); }
  void setUserMetadata(const std::string& data) override { g_native->setUserMetadata(data); }
  std::string getUserMetadata() override { return g_native->getUserMetadata(); }
  void attachOutOfMemoryObserver(cca::OutOfMemoryObserver observer) override {
    g_native->attachOutOfMemoryObserver(std::move(observer));
  }
  void attachAllocatorTraceTracker(cca::AllocatorTraceTracker tracker) override {
    g_native->attachAllocatorTraceTracker(std::move(tracker));
  }
  void enablePeerAccess(DeviceIndex device, DeviceIndex other) override { g_native->enablePeerAccess(device, other); }
  std::shared_ptr<cca::AllocatorState> getCheckpointState(DeviceIndex device, MempoolId_t pool) override {
    return g_native->getCheckpointState(device, pool);
  }
  cca::CheckpointDelta setCheckpointPoolState(DeviceIndex device, std::shared_ptr<cca::AllocatorState> state) override {
    cca::CheckpointDelta delta = g_native->setCheckpointPoolState(device, std::move(state));
    for (c10::DataPtr& made : delta.dataptrs_allocd) freed_by_us(made);
    return delta;
  }
#if VT_SINCE(2, 12)
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* address) override {
    return g_native->getContextForPointer(address);
  }
  void attachOomRejectionObserver(cca::OomRejectionObserver observer) override {
    g_native->attachOomRejectionObserver(std::move(observer));
  }
#endif
#if VT_SINCE(2, 13)
  void markCaptureBegin(DeviceIndex device) override { g_native->markCaptureBegin(device); }
  void markCaptureEnd(DeviceIndex device) override { g_native->markCaptureEnd(device); }
  c10::DataPtr allocateWithAddress(std::size_t bytes, void* address) override {
    return g_native->allocateWithAddress(bytes, address);
  }
#endif
#if VT_SINCE(2, 14)
  bool supportsUserMetadata() override { return g_native->supportsUserMetadata(); }
  void annotateMemory(const void* address, const std::string& about) override {
    if (owner_of(address) == nullptr) g_native->annotateMemory(address, about);  // what is managed is not in its snapshots
  }
#endif

 private:
  // A graph that is captured keeps the addresses it saw for good: its memory is torch's.
  static bool wanted(Bytes bytes, DeviceIndex device) {
    const Managing managing = this_thread().managing;
    if (bytes == 0 || managing == Managing::none) return false;
    if (bytes < g_min_bytes.load(std::memory_order_relaxed) && managing != Managing::all) return false;
    if (g_pools.load(std::memory_order_relaxed) > 0 && this_thread().remaking == 0) return false;
    if (device != g_ordinal.load(std::memory_order_relaxed) || current_engine() == nullptr || in_forked_child()) return false;
    return !capturing();
  }

  static void* managed(Bytes bytes, c10::cuda::CUDAStream stream) {
    Engine& engine = *current_engine();
    try {
      return allocate_managed(engine, bytes, lane_of(engine, stream));
    } catch (const OutOfMemory& error) {
      TORCH_CHECK_WITH(OutOfMemoryError, false, error.what(), "\n  In torch's words: CUDA out of memory.");
    }
  }
};

// Never destroyed: tensors may outlive everything.
Allocator& ours() {
  static auto* allocator = new Allocator;
  return *allocator;
}

void serve(cca::CUDAAllocator& allocator) {
  cca::allocator.store(&allocator);
  c10::SetAllocator(c10::kCUDA, &allocator, /*priority=*/0);
}

}  // namespace

void attach_torch_cuda(Bytes min_bytes, int ordinal) {
  if (g_native == nullptr) g_native = cca::get();
  g_min_bytes = min_bytes;
  g_pools = 0;  // of an earlier session, that ended within one
  g_ordinal = ordinal;
  begin_recording();
  set_current_stream(&lane_of_this_thread);
  serve(ours());
  observe();  // from the first operation: no fault brings back what an operation misses
}

void detach_torch_cuda() {
  g_ordinal = -1;
  serve(*g_native);  // what we gave out is freed through its deleter
  stop_observing();
  record_only(nullptr);
}

}  // namespace vt
