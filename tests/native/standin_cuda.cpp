// A CUDA driver without a GPU: the functions of cuda.h that vtensor uses, over ordinary memory and late work (late_work.h).
//
// Covers: CUDA's rules, kept more strictly than by CUDA: mappings whole and from offset 0, access only once it is set, a context
// on every calling thread, work that happens late; the nth call may be made to fail. Built as a library of its own, which
// CudaApi::load() opens in the place of libcuda.so.1.
// Leaves: kernels. Whoever tests pushes them onto the lanes.
#include <cuda.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>

#include "standin_cuda.h"

namespace {

struct Handle {
  int file;
  std::size_t bytes;
  bool in_host;
  int references = 1;
};
struct Mapping {
  std::uint64_t handle;
  bool accessible = false;
};

constexpr std::size_t kGranularity = 4 << 10;

StandinCuda g;
std::map<std::uint64_t, Handle> g_handles;
std::map<std::uintptr_t, Mapping> g_mappings;
std::map<std::uintptr_t, std::size_t> g_reservations;
std::map<void*, std::size_t> g_pinned;
std::uint64_t g_next_handle = 1;
std::size_t g_used = 0;
thread_local std::vector<CUcontext> g_contexts;

CUcontext primary() { return reinterpret_cast<CUcontext>(0x77); }
LateWork::Lane lane_of(CUstream stream) { return reinterpret_cast<std::uintptr_t>(stream) - 1; }
struct Event {
  LateWork::Point at{0, 0};
  bool timed = true;
};
Event& event_of(CUevent event) { return *reinterpret_cast<Event*>(event); }
LateWork::Point& point_of(CUevent event) { return event_of(event).at; }
void* pointer(std::uintptr_t at) { return reinterpret_cast<void*>(at); }

// Every function that needs a context begins with it; it is also where a test makes calls fail.
bool enters(CUresult* result, bool context = true) {
  ++g.calls;
  *result = CUDA_SUCCESS;
  if (context && g_contexts.empty()) *result = CUDA_ERROR_INVALID_CONTEXT;
  if (g.fail_at != 0 && g.calls == g.fail_at) *result = CUDA_ERROR_UNKNOWN;
  if (g.lost) *result = CUDA_ERROR_ASSERT;
  return *result == CUDA_SUCCESS;
}

bool reserved(std::uintptr_t at, std::size_t bytes) {
  const auto after = g_reservations.upper_bound(at);
  if (after == g_reservations.begin()) return false;
  const auto& [base, length] = *std::prev(after);
  return at + bytes <= base + length;
}

bool used(std::uintptr_t at) {
  return g.work.pending([&](const auto& item) {
    return std::any_of(item.uses.begin(), item.uses.end(), [&](const auto& use) { return use.first == at; });
  });
}

void let_go(std::uint64_t id) {
  Handle& handle = g_handles.at(id);
  if (--handle.references > 0) return;
  close(handle.file);
  (handle.in_host ? g.in_host : g_used) -= handle.bytes;
  g_handles.erase(id);
}

// What is mapped side by side is copied as one.
CUresult copy(LateWork::Lane lane, std::uintptr_t device, const void* host, std::size_t bytes, std::function<void()> body) {
  const auto first = static_cast<const char*>(host);
  for (const auto& [at, pinned] : g_pinned) {
    const auto begin = static_cast<const char*>(at);
    const bool touches = first < begin + pinned && begin < first + bytes;
    if (touches && (first < begin || first + bytes > begin + pinned)) return CUDA_ERROR_INVALID_VALUE;  // as the real one
  }
  LateWork::Uses uses;
  for (std::uintptr_t at = device; at < device + bytes; at += g_handles.at(g_mappings.at(at).handle).bytes) {
    const auto found = g_mappings.find(at);
    if (found == g_mappings.end() || !found->second.accessible) return CUDA_ERROR_INVALID_VALUE;
    uses.push_back({at, found->second.handle});
  }
  ++g.copies;
  g.work.push(lane, {std::move(body), std::move(uses)});
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

StandinCuda* standin_cuda() { return &g; }

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuGetErrorName(CUresult error, const char** name) {
  *name = error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_STANDIN";
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int* count) { return *count = 1, CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice* device, int ordinal) { return *device = ordinal, CUDA_SUCCESS; }
CUresult cuDeviceGetName(char* name, int bytes, CUdevice) { return std::strncpy(name, "Stand-in", bytes), CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute what, CUdevice) {
  *value = what == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED ? g.virtual_memory
           : what == CU_DEVICE_ATTRIBUTE_INTEGRATED                        ? g.integrated
           : what == CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED ? g.host_node >= 0
           : what == CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID                                  ? g.host_node
                                                                                       : 0;
  return CUDA_SUCCESS;
}
CUresult cuDeviceCanAccessPeer(int* reaches, CUdevice, CUdevice) { return *reaches = 0, CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) { return *context = primary(), CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRelease(CUdevice) { return CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = g_contexts.empty() ? nullptr : g_contexts.back();
  return CUDA_SUCCESS;
}
CUresult cuCtxPushCurrent(CUcontext context) { return g_contexts.push_back(context), CUDA_SUCCESS; }
CUresult cuCtxPopCurrent(CUcontext* context) {
  *context = g_contexts.back();
  return g_contexts.pop_back(), CUDA_SUCCESS;
}
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode*) { return CUDA_SUCCESS; }
CUresult cuCtxSynchronize() { return g.work.drain(), CUDA_SUCCESS; }
CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  return *bytes = kGranularity, CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* at, size_t bytes, size_t alignment, CUdeviceptr, unsigned long long) {
  CUresult result;
  if (!enters(&result)) return result;
  if (bytes % kGranularity != 0) return CUDA_ERROR_INVALID_VALUE;
  // Given back with the whole of it at the end: a reservation is cut to its alignment.
  auto raw = reinterpret_cast<std::uintptr_t>(
      mmap(nullptr, bytes + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  const std::uintptr_t base = (raw + alignment - 1) / alignment * alignment;
  if (base > raw) munmap(pointer(raw), base - raw);
  munmap(pointer(base + bytes), raw + alignment - base);
  g_reservations[base] = bytes;
  return *at = base, CUDA_SUCCESS;
}
CUresult cuMemAddressFree(CUdeviceptr at, size_t bytes) {
  CUresult result;
  if (!enters(&result)) return result;
  const auto found = g_reservations.find(at);
  if (found == g_reservations.end() || found->second != bytes) return CUDA_ERROR_INVALID_VALUE;
  const auto inside = g_mappings.lower_bound(at);
  if (inside != g_mappings.end() && inside->first < at + bytes) return CUDA_ERROR_INVALID_VALUE;
  munmap(pointer(at), bytes);
  g_reservations.erase(found);
  return CUDA_SUCCESS;
}
CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* what, unsigned long long) {
  CUresult result;
  if (!enters(&result)) return result;
  const bool in_host = what->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
  if (in_host && (g.host_node < 0 || what->location.id != g.host_node)) return CUDA_ERROR_INVALID_VALUE;
  if (!in_host && g_used + bytes > g.limit) return CUDA_ERROR_OUT_OF_MEMORY;
  const int file = memfd_create("chunk", 0);
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  (in_host ? g.in_host : g_used) += bytes;
  g_handles[*handle = g_next_handle++] = {file, bytes, in_host};
  return CUDA_SUCCESS;
}
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  CUresult result;
  if (!enters(&result)) return result;
  if (!g_handles.contains(handle)) return CUDA_ERROR_INVALID_VALUE;
  return let_go(handle), CUDA_SUCCESS;
}
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* at) {
  CUresult result;
  if (!enters(&result)) return result;
  const auto found = g_mappings.find(reinterpret_cast<std::uintptr_t>(at));
  if (found == g_mappings.end()) return CUDA_ERROR_INVALID_VALUE;
  ++g_handles.at(*handle = found->second.handle).references;
  return CUDA_SUCCESS;
}
CUresult cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long) {
  CUresult result;
  if (!enters(&result)) return result;
  if (offset != 0 || !g_handles.contains(handle) || g_handles[handle].bytes != bytes || !reserved(at, bytes) ||
      g_mappings.contains(at)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  ++g_handles[handle].references;
  g_mappings[at] = {handle};
  return CUDA_SUCCESS;
}
CUresult cuMemSetAccess(CUdeviceptr at, size_t bytes, const CUmemAccessDesc* users, size_t count) {
  CUresult result;
  if (!enters(&result)) return result;
  const bool for_host = std::any_of(users, users + count,
                                    [](const auto& user) { return user.location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA; });
  for (const CUdeviceptr end = at + bytes; at < end;) {  // several mappings, but each of them whole
    const auto found = g_mappings.find(at);
    if (found == g_mappings.end()) return CUDA_ERROR_INVALID_VALUE;
    const Handle& handle = g_handles.at(found->second.handle);
    if (for_host && !handle.in_host) return CUDA_ERROR_INVALID_VALUE;
    if (at + handle.bytes > end ||
        mmap(pointer(at), handle.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, handle.file, 0) == MAP_FAILED) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    found->second.accessible = true;
    at += handle.bytes;
  }
  return CUDA_SUCCESS;
}
CUresult cuMemUnmap(CUdeviceptr at, size_t bytes) {
  CUresult result;
  if (!enters(&result)) return result;
  for (const CUdeviceptr end = at + bytes; at < end;) {
    const auto found = g_mappings.find(at);
    if (found == g_mappings.end()) return CUDA_ERROR_INVALID_VALUE;
    const std::uint64_t handle = found->second.handle;
    const std::size_t piece = g_handles.at(handle).bytes;
    if (used(at)) g.work.complain("an address is unmapped while work that was asked for uses it");
    mmap(pointer(at), piece, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    g_mappings.erase(found);
    let_go(handle);
    at += piece;
  }
  return CUDA_SUCCESS;
}

CUresult cuMemHostRegister(void* at, size_t bytes, unsigned) {
  CUresult result;
  if (!enters(&result)) return result;
  if (g.pinned + bytes > g.most_pinned) return CUDA_ERROR_OUT_OF_MEMORY;
  g_pinned[at] = bytes;
  return g.pinned += bytes, CUDA_SUCCESS;
}
CUresult cuMemHostUnregister(void* at) {
  if (!g_pinned.contains(at)) return CUDA_ERROR_INVALID_VALUE;
  g.pinned -= g_pinned[at];
  return g_pinned.erase(at), CUDA_SUCCESS;
}
CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  CUresult result;
  if (!enters(&result)) return result;
  return copy(lane_of(stream), from, to, bytes, [=] { std::memcpy(to, pointer(from), bytes); });
}
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  CUresult result;
  if (!enters(&result)) return result;
  return copy(lane_of(stream), to, from, bytes, [=] { std::memcpy(pointer(to), from, bytes); });
}
CUresult cuStreamCreate(CUstream* stream, unsigned) {
  CUresult result;
  if (!enters(&result)) return result;
  *stream = reinterpret_cast<CUstream>(g.work.add_lane() + 1);
  return CUDA_SUCCESS;
}
CUresult cuStreamDestroy(CUstream) { return CUDA_SUCCESS; }
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  *status = g.capturing == stream ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
  CUresult result;
  if (!enters(&result)) return result;
  return g.work.order(lane_of(stream), point_of(event)), CUDA_SUCCESS;
}
CUresult cuEventCreate(CUevent* event, unsigned flags) {
  CUresult result;
  if (!enters(&result)) return result;
  ++g.events;
  *event = reinterpret_cast<CUevent>(new Event{{0, 0}, (flags & CU_EVENT_DISABLE_TIMING) == 0});
  return CUDA_SUCCESS;
}
CUresult cuEventDestroy(CUevent event) {
  --g.events;
  delete &event_of(event);
  return CUDA_SUCCESS;
}
CUresult cuEventRecord(CUevent event, CUstream stream) {
  CUresult result;
  if (!enters(&result)) return result;
  ++g.records;
  if (g.capturing == stream) g.work.complain("an event is recorded where a graph is captured");
  point_of(event) = g.work.end_of(lane_of(stream));
  return CUDA_SUCCESS;
}
CUresult cuEventQuery(CUevent event) { return g.work.poll(point_of(event)) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY; }
CUresult cuEventSynchronize(CUevent event) { return g.work.wait(point_of(event)), CUDA_SUCCESS; }
CUresult cuEventElapsedTime(float* ms, CUevent begin, CUevent end) {
  if (!event_of(begin).timed || !event_of(end).timed) g.work.complain("an event was made that tells no time, and is asked");
  if (!g.work.passed(point_of(end))) return CUDA_ERROR_NOT_READY;
  *ms = !g.elapsed.empty() ? g.elapsed.front() : begin == end ? 0.0F : 1.0F;
  if (!g.elapsed.empty()) g.elapsed.pop_front();
  return CUDA_SUCCESS;
}

}  // extern "C"

void StandinCuda::begin(std::uint32_t seed) {
  work.begin(seed);
  work.mapped = [](std::uintptr_t at) {
    const auto found = g_mappings.find(at);
    return found != g_mappings.end() && found->second.accessible ? found->second.handle : ~std::uint64_t{0};
  };
  calls = fail_at = copies = 0;
  host_node = -1;
}

std::size_t StandinCuda::handles() const { return g_handles.size(); }
std::size_t StandinCuda::mappings() const { return g_mappings.size(); }
