#include "cuda/driver_cuda.h"

#include <algorithm>
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
  if (attribute(api, CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device) != 0) {
    found.host_node = std::max(attribute(api, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, device), 0);  // -1: there is only one
  }
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

CudaDriver::CudaDriver(Bytes chunk_bytes, int ordinal, const char* library, bool places)
    : chunk_bytes_(chunk_bytes), ordinal_(ordinal), api_(CudaApi::load(library)), here_(memory_of(ordinal)) {
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
  users_.push_back(here_.location);
  int devices = 0, reaches = 0;
  (void)api_.cuDeviceGetCount_(&devices);
  for (int other = 0; other < devices; ++other) {
    CUdevice peer = 0;
    if (other == ordinal || api_.cuDeviceGet_(&peer, other) != CUDA_SUCCESS) continue;
    if (api_.cuDeviceCanAccessPeer_(&reaches, peer, device_) == CUDA_SUCCESS && reaches != 0) {
      users_.push_back(memory_of(other).location);
    }
  }
  if (Chunk trial; users_.size() > 1) {  // one that refuses would make every mapping fail
    make(here_, users_, &trial).ok() ? unmake(trial) : users_.resize(1);
  }
  const CUmemAllocationProp host = memory_of_host(device.host_node);
  std::size_t granularity = 0;
  if (places && device.host_node >= 0 &&
      api_.cuMemGetAllocationGranularity_(&granularity, &host, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS &&
      granularity > 0 && chunk_bytes % granularity == 0) {
    host_node_ = device.host_node;
  }
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
  for (const Address at : host_mapped_) {
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

Status CudaDriver::make(const CUmemAllocationProp& what, std::span<const CUmemLocation> users, Chunk* made) {
  CUdeviceptr home = 0;
  Status status = check("cuMemCreate", api_.cuMemCreate_(&made->handle, chunk_bytes_, &what, 0));
  if (!status.ok()) return status;
  status = check("cuMemAddressReserve", api_.cuMemAddressReserve_(&home, chunk_bytes_, chunk_bytes_, 0, 0));
  if (status.ok()) {
    status = check("cuMemMap", api_.map(home, chunk_bytes_, {&made->handle, 1}, users));
    if (!status.ok()) (void)api_.cuMemAddressFree_(home, chunk_bytes_);
  }
  if (!status.ok()) (void)api_.cuMemRelease_(made->handle);
  made->home = static_cast<Address>(home);
  return status;
}

void CudaDriver::unmake(const Chunk& gone) {
  if (!check("cuMemUnmap", api_.cuMemUnmap_(at_device(gone.home), chunk_bytes_)).ok() ||
      !check("cuMemAddressFree", api_.cuMemAddressFree_(at_device(gone.home), chunk_bytes_)).ok()) {
    fatal("memory that nothing uses cannot be unmapped");
  }
  (void)api_.cuMemRelease_(gone.handle);
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
    status = make(here_, {users_.data(), 1}, &made);
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
    (void)api_.cuMemRelease_(gone.handle);
  } else {
    unmake(gone);
  }
  gone = {};
  unused_.push_back(chunk);
  --existing_;
  return kOk;
}

// --- mappings --------------------------------------------------------------------------------------------------------------

bool CudaDriver::in_reservation(Address at, Bytes bytes) const {
  const auto after = reservations_.upper_bound(at);
  if (after == reservations_.begin() || at % chunk_bytes_ != 0) return false;
  const auto& [base, length] = *std::prev(after);
  return at + bytes <= base + length;
}

Status CudaDriver::map_run(Address at, std::span<const ChunkId> chunks) {
  const Current current(*this);
  std::lock_guard lock(mutex_);
  if (!in_reservation(at, chunks.size() * chunk_bytes_)) return illegal("map");
  std::vector<CUmemGenericAllocationHandle> handles;
  for (const ChunkId chunk : chunks) {
    const Address here = at + handles.size() * chunk_bytes_;
    if (chunk >= chunks_.size() || !chunks_[chunk].exists || mapped_.contains(here) || host_mapped_.contains(here)) {
      return illegal("map");
    }
    handles.push_back(chunks_[chunk].handle);
  }
  const Status status = check("cuMemMap", api_.map(at_device(at), chunk_bytes_, handles, users_));
  for (std::size_t i = 0; status.ok() && i < chunks.size(); ++i) mapped_[at + i * chunk_bytes_] = chunks[i];
  return status;
}

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

// --- memory of the host ------------------------------------------------------------------------------------------------------

// The processor too: CUDA may copy what it knows as the host's memory by itself.
std::vector<CUmemLocation> CudaDriver::users_of_host() const {
  std::vector<CUmemLocation> users = users_;
  users.push_back(memory_of_host(host_node_).location);
  return users;
}

Status CudaDriver::make_place(HostPlace* place) {
  const Current current(*this);
  std::lock_guard lock(mutex_);
  if (host_node_ < 0) return {Code::failed, "make_place", 0};
  Chunk made;
  const Status status = make(memory_of_host(host_node_), users_of_host(), &made);
  if (!status.ok()) return status;
  places_[made.home] = made;
  *place = {reinterpret_cast<void*>(made.home), -1, 0};
  return kOk;
}

Status CudaDriver::drop_place(const HostPlace& place) {
  const Current current(*this);
  std::lock_guard lock(mutex_);
  const auto found = places_.find(reinterpret_cast<Address>(place.memory));
  if (found == places_.end()) return illegal("drop_place");
  unmake(found->second);
  places_.erase(found);
  return kOk;
}

Status CudaDriver::map_host(Address at, const HostPlace& place) {
  const Current current(*this);
  std::lock_guard lock(mutex_);
  const auto found = places_.find(reinterpret_cast<Address>(place.memory));
  if (found == places_.end()) return {Code::failed, "map_host", 0};
  if (!in_reservation(at, chunk_bytes_) || mapped_.contains(at) || host_mapped_.contains(at)) return illegal("map_host");
  const Status status = check("cuMemMap", api_.map(at_device(at), chunk_bytes_, {&found->second.handle, 1}, users_of_host()));
  if (status.ok()) host_mapped_.insert(at);
  return status;
}

Status CudaDriver::unmap_host(Address at) {
  const Current current(*this);
  std::lock_guard lock(mutex_);
  if (!host_mapped_.contains(at)) return illegal("unmap_host");
  const Status status = check("cuMemUnmap", api_.cuMemUnmap_(at_device(at), chunk_bytes_));
  if (status.ok()) host_mapped_.erase(at);
  return status;
}

LiveHandles CudaDriver::live() const {
  std::lock_guard lock(mutex_);
  std::size_t copies = 0;
  for (std::size_t lane = 0; lane < 2; ++lane) copies += lines_[lane].pending.size();
  return {reservations_.size(), existing_, mapped_.size(), host_mapped_.size(), copies, places_.size()};
}

}  // namespace vt
