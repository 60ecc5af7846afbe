#include "driver_cuda.h"

#include <bit>
#include <iterator>

namespace vt {

namespace {

Status illegal(const char* call) { return {Code::illegal, call, 0}; }
CUdeviceptr at_device(Address at) { return static_cast<CUdeviceptr>(at); }

int attribute(const CudaApi& api, CUdevice_attribute what, CUdevice device) {
  int value = 0;
  return api.cuDeviceGetAttribute_(&value, what, device) == CUDA_SUCCESS ? value : 0;
}

}  // namespace

CudaDevice probe_cuda(int ordinal, const char* library) {
  const CudaApi& api = CudaApi::load(library);
  int count = 0;
  if (api.cuDeviceGetCount_(&count) != CUDA_SUCCESS || ordinal < 0 || ordinal >= count) {
    throw InvalidUse("there is no CUDA device " + std::to_string(ordinal) + ": the driver lists " + std::to_string(count));
  }
  CUdevice device = 0;
  CudaDevice found;
  found.ordinal = ordinal;
  char name[256] = {};
  std::size_t granularity = 0;
  const CUmemAllocationProp properties = memory_of(ordinal);
  if (api.cuDeviceGet_(&device, ordinal) != CUDA_SUCCESS || api.cuDeviceGetName_(name, sizeof name, device) != CUDA_SUCCESS ||
      api.cuDeviceTotalMem_(&found.total_bytes, device) != CUDA_SUCCESS) {
    throw InvalidUse("CUDA device " + std::to_string(ordinal) + " does not answer");
  }
  found.name = name;
  found.virtual_memory = attribute(api, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device) != 0;
  found.integrated = attribute(api, CU_DEVICE_ATTRIBUTE_INTEGRATED, device) != 0;
  (void)api.cuDriverGetVersion_(&found.driver_version);
  if (found.virtual_memory &&
      api.cuMemGetAllocationGranularity_(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS) {
    found.granularity = granularity;
  }
  return found;
}

CudaDriver::Current::Current(const CudaDriver& driver) : api_(driver.api_) {
  CUcontext now = nullptr;
  pushed_ = api_.cuCtxGetCurrent_(&now) != CUDA_SUCCESS || now != driver.context_;
  if (pushed_) pushed_ = api_.cuCtxPushCurrent_(driver.context_) == CUDA_SUCCESS;  // else the calls that follow say it
  (void)api_.cuThreadExchangeStreamCaptureMode_(&mode_);
}

CudaDriver::Current::~Current() {
  CUcontext popped = nullptr;
  (void)api_.cuThreadExchangeStreamCaptureMode_(&mode_);
  if (pushed_) (void)api_.cuCtxPopCurrent_(&popped);
}

CudaDriver::CudaDriver(Bytes chunk_bytes, int ordinal, const char* library)
    : chunk_bytes_(chunk_bytes), ordinal_(ordinal), api_(CudaApi::load(library)) {
  const CudaDevice device = probe_cuda(ordinal, library);
  if (!device.virtual_memory || device.granularity == 0) {
    throw InvalidUse(device.name + " has no virtual memory management (needs compute capability 6.0, and no vGPU without it)");
  }
  if (!std::has_single_bit(chunk_bytes) || chunk_bytes % device.granularity != 0) {
    throw InvalidUse("chunk must be a power of two and a multiple of " + format_bytes(device.granularity) + " on " +
                     device.name + ", got " + std::to_string(chunk_bytes) + " bytes");
  }
  if (api_.cuDeviceGet_(&device_, ordinal) != CUDA_SUCCESS ||
      api_.cuDevicePrimaryCtxRetain_(&context_, device_) != CUDA_SUCCESS) {
    throw InvalidUse("CUDA device " + std::to_string(ordinal) + " gives no context; is another process using it exclusively?");
  }
  const Current current(*this);
  lines_.resize(2);
  for (Line& line : lines_) {
    if (const CUresult result = api_.cuStreamCreate_(&line.stream, CU_STREAM_NON_BLOCKING); result != CUDA_SUCCESS) {
      throw InvalidUse("no stream for copies can be had: " + api_.describe(result));
    }
  }
}

CudaDriver::~CudaDriver() {
  {
    const Current current(*this);
    for (Line& line : lines_) {
      for (const Pending& pending : line.pending) {
        events_.push_back(pending.end);
        if (pending.begin != nullptr) events_.push_back(pending.begin);
      }
    }
    events_.insert(events_.end(), stamps_.begin(), stamps_.end());
    for (const CUevent event : events_) (void)api_.cuEventDestroy_(event);
    (void)api_.cuStreamDestroy_(lines_[0].stream);
    (void)api_.cuStreamDestroy_(lines_[1].stream);
    for (const auto& [base, bytes] : reservations_) (void)api_.cuMemAddressFree_(at_device(base), bytes);
  }
  (void)api_.cuDevicePrimaryCtxRelease_(device_);
}

Status CudaDriver::check(const char* call, CUresult result) const {
  // When the process ends the driver goes before the last tensors do: then nothing is left to be kept in order.
  if (result == CUDA_SUCCESS || result == CUDA_ERROR_DEINITIALIZED) return kOk;
  return {Code::refused, call, static_cast<int>(result)};
}

// --- addresses and chunks ------------------------------------------------------------------------------------------------

Status CudaDriver::reserve(Bytes bytes, Address* base) {
  if (bytes == 0 || bytes % chunk_bytes_ != 0) return illegal("reserve");
  const Current current(*this);
  CUdeviceptr at = 0;
  const Status status = check("reserve", api_.cuMemAddressReserve_(&at, bytes, chunk_bytes_, 0, 0));
  if (!status.ok()) return status;
  std::lock_guard lock(mutex_);
  reservations_[*base = static_cast<Address>(at)] = bytes;
  return kOk;
}

Status CudaDriver::release(Address base) {
  const Current current(*this);
  std::lock_guard lock(mutex_);
  const auto found = reservations_.find(base);
  if (found == reservations_.end()) return illegal("release");
  for (const auto& [at, chunk] : mapped_) {
    if (at >= base && at < base + found->second) return illegal("release");
  }
  const Status status = check("release", api_.cuMemAddressFree_(at_device(base), found->second));
  if (status.ok()) reservations_.erase(found);
  return status;
}

Status CudaDriver::set_capacity(std::size_t chunks) {
  std::lock_guard lock(mutex_);
  if (chunks < existing_) return illegal("set_capacity");
  capacity_ = chunks;
  return kOk;
}

Status CudaDriver::donate(Address home) {
  std::lock_guard lock(mutex_);
  donated_.push_back(home);
  return kOk;
}

Address CudaDriver::take_back() {
  std::lock_guard lock(mutex_);
  if (donated_.empty()) return 0;
  const Address home = donated_.back();
  donated_.pop_back();
  return home;
}

Status CudaDriver::open(Address at, CUmemGenericAllocationHandle handle) {
  return check("cuMemMap", api_.map(at_device(at), chunk_bytes_, {&handle, 1}, ordinal_));
}

// A chunk of our own, with an address for its copies.
Status CudaDriver::make_chunk(Chunk& chunk) {
  const CUmemAllocationProp properties = memory_of(ordinal_);
  CUdeviceptr home = 0;
  Status status = check("cuMemCreate", api_.cuMemCreate_(&chunk.handle, chunk_bytes_, &properties, 0));
  if (!status.ok()) return status;
  status = check("cuMemAddressReserve", api_.cuMemAddressReserve_(&home, chunk_bytes_, chunk_bytes_, 0, 0));
  if (status.ok()) {
    status = open(static_cast<Address>(home), chunk.handle);
    if (!status.ok()) (void)api_.cuMemAddressFree_(home, chunk_bytes_);
  }
  if (!status.ok()) (void)api_.cuMemRelease_(chunk.handle);
  chunk.home = static_cast<Address>(home);
  return status;
}

Status CudaDriver::create(ChunkId* chunk) {
  const Current current(*this);
  std::lock_guard lock(mutex_);
  if (existing_ >= capacity_) return {Code::out_of_budget, "create", 0};
  Chunk made;
  made.exists = true;
  made.donated = !donated_.empty();
  Status status;
  if (made.donated) {
    made.home = donated_.back();
    status = check("cuMemRetainAllocationHandle",
                   api_.cuMemRetainAllocationHandle_(&made.handle, reinterpret_cast<void*>(made.home)));
    if (status.ok()) donated_.pop_back();
  } else {
    status = make_chunk(made);
  }
  if (!status.ok()) return status;
  if (unused_.empty()) {
    unused_.push_back(static_cast<ChunkId>(chunks_.size()));
    chunks_.emplace_back();
  }
  *chunk = unused_.back();
  unused_.pop_back();
  chunks_[*chunk] = made;
  ++existing_;
  return kOk;
}

Status CudaDriver::destroy(ChunkId chunk) {
  const Current current(*this);
  std::lock_guard lock(mutex_);
  if (chunk >= chunks_.size() || !chunks_[chunk].exists) return illegal("destroy");
  for (const auto& [at, mapped] : mapped_) {
    if (mapped == chunk) return illegal("destroy");
  }
  Chunk& gone = chunks_[chunk];
  if (gone.donated) {
    donated_.push_back(gone.home);
  } else if (api_.cuMemUnmap_(at_device(gone.home), chunk_bytes_) != CUDA_SUCCESS ||
             api_.cuMemAddressFree_(at_device(gone.home), chunk_bytes_) != CUDA_SUCCESS) {
    fatal("a chunk that nothing uses cannot be unmapped");
  }
  (void)api_.cuMemRelease_(gone.handle);
  gone = {};
  unused_.push_back(chunk);
  --existing_;
  return kOk;
}

// --- mappings --------------------------------------------------------------------------------------------------------------

Status CudaDriver::map(Address at, ChunkId chunk, Access access) {
  return access == Access::none ? illegal("map") : map_run(at, {&chunk, 1});
}

Status CudaDriver::map_run(Address at, std::span<const ChunkId> chunks) {
  const Current current(*this);
  std::lock_guard lock(mutex_);
  const auto after = reservations_.upper_bound(at);
  if (after == reservations_.begin() || at % chunk_bytes_ != 0 ||
      at + chunks.size() * chunk_bytes_ > std::prev(after)->first + std::prev(after)->second) {
    return illegal("map");
  }
  std::vector<CUmemGenericAllocationHandle> handles;
  for (const ChunkId chunk : chunks) {
    if (chunk >= chunks_.size() || !chunks_[chunk].exists || mapped_.contains(at + handles.size() * chunk_bytes_)) {
      return illegal("map");
    }
    handles.push_back(chunks_[chunk].handle);
  }
  const Status status = check("cuMemMap", api_.map(at_device(at), chunk_bytes_, handles, ordinal_));
  for (std::size_t i = 0; status.ok() && i < chunks.size(); ++i) mapped_[at + i * chunk_bytes_] = chunks[i];
  return status;
}

Status CudaDriver::protect(Address, Access) { return illegal("protect"); }

Status CudaDriver::unmap(Address at) { return unmap_run(at, 1); }

Status CudaDriver::unmap_run(Address at, std::size_t chunks) {
  const Current current(*this);
  std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < chunks; ++i) {
    if (!mapped_.contains(at + i * chunk_bytes_)) return illegal("unmap");
  }
  Status status = check("cuMemUnmap", api_.cuMemUnmap_(at_device(at), chunks * chunk_bytes_));
  for (std::size_t i = 0; i < chunks; ++i) {
    // What cannot be taken back in one call can be in several.
    if (!status.ok() && chunks > 1) {
      const Status single = check("cuMemUnmap", api_.cuMemUnmap_(at_device(at + i * chunk_bytes_), chunk_bytes_));
      if (!single.ok() && i == 0) return status;
      if (!single.ok()) fatal("a mapping cannot be taken back: " + describe(single));
    } else if (!status.ok()) {
      return status;
    }
    mapped_.erase(at + i * chunk_bytes_);
  }
  return kOk;
}

Status CudaDriver::map_host(Address, const HostPlace&) { return {Code::failed, "map_host", 0}; }
Status CudaDriver::unmap_host(Address) { return illegal("unmap_host"); }

LiveHandles CudaDriver::live() const {
  std::lock_guard lock(mutex_);
  std::size_t copies = 0;
  for (std::size_t lane = 0; lane < 2; ++lane) copies += lines_[lane].pending.size();
  return {reservations_.size(), existing_, mapped_.size(), 0, copies};
}

}  // namespace vt
