#include "cuda/driver_cuda.h"

#include <algorithm>
#include <bit>
#include <iterator>

namespace vt {

namespace {
CUdeviceptr at_device(Address at) { return static_cast<CUdeviceptr>(at); }

bool inside(const std::map<Address, Bytes>& reservations, Address at, Bytes bytes) {
  const auto after = reservations.upper_bound(at);
  if (after == reservations.begin()) return false;
  const auto& [base, length] = *std::prev(after);
  return at + bytes <= base + length;
}

// The processor too: CUDA may copy what it knows as the host's memory by itself.
std::vector<CUmemLocation> users_of_host(std::vector<CUmemLocation> users, int node) {
  users.push_back(memory_of_host(node).location);
  return users;
}

// The device, if it can do what is needed.
CudaDevice usable(Bytes chunk_bytes, int ordinal, const char* library) {
  const CudaDevice device = probe_cuda(ordinal, library);
  if (!device.virtual_memory || device.granularity == 0) {
    throw InvalidUse(device.name + " has no virtual memory management (needs compute capability 6.0, and no vGPU without it)");
  }
  if (!std::has_single_bit(chunk_bytes) || chunk_bytes % device.granularity != 0) {
    throw InvalidUse("chunk must be a power of two and a multiple of " + format_bytes(device.granularity) + " on " +
                     device.name + ", got " + std::to_string(chunk_bytes) + " bytes");
  }
  return device;
}

}  // namespace

CudaDriver::CudaDriver(Bytes chunk_bytes, int ordinal, const char* library, bool places)
    : chunk_bytes_(chunk_bytes),
      api_(CudaApi::load(library)),
      here_(memory_of(ordinal)),
      device_(usable(chunk_bytes, ordinal, library)),
      context_(api_, ordinal),
      lanes_(context_) {
  const Current current(context_);
  users_.push_back(here_.location);
  int devices = 0, reaches = 0;
  (void)api_.cuDeviceGetCount_(&devices);
  for (int other = 0; other < devices; ++other) {
    CUdevice peer = 0;
    if (other == ordinal || api_.cuDeviceGet_(&peer, other) != CUDA_SUCCESS) continue;
    if (api_.cuDeviceCanAccessPeer_(&reaches, peer, context_.device) == CUDA_SUCCESS && reaches != 0) {
      users_.push_back(memory_of(other).location);
    }
  }
  if (Chunk trial; users_.size() > 1) {  // one that refuses would make every mapping fail
    make(here_, users_, &trial).ok() ? unmake(trial) : users_.resize(1);
  }
  const CUmemAllocationProp host = memory_of_host(device_.host_node);
  std::size_t granularity = 0;
  if (places && device_.host_node >= 0 &&
      api_.cuMemGetAllocationGranularity_(&granularity, &host, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS &&
      granularity > 0 && chunk_bytes % granularity == 0) {
    host_node_ = device_.host_node;
  }
}

CudaDriver::~CudaDriver() {
  const Current current(context_);
  for (const auto& [base, bytes] : reservations_) (void)api_.cuMemAddressFree_(at_device(base), bytes);
}

// --- addresses and chunks ------------------------------------------------------------------------------------------------

Status CudaDriver::reserve(Bytes bytes, Address* base) {
  if (bytes == 0 || bytes % chunk_bytes_ != 0) return illegal("reserve");
  const Current current(context_);
  CUdeviceptr at = 0;
  const Status status = cuda_status("reserve", api_.cuMemAddressReserve_(&at, bytes, chunk_bytes_, 0, 0));
  if (!status.ok()) return status;
  std::lock_guard lock(mutex_);
  reservations_[*base = static_cast<Address>(at)] = bytes;
  return kOk;
}

Status CudaDriver::release(Address base) {
  const Current current(context_);
  std::lock_guard lock(mutex_);
  const auto found = reservations_.find(base);
  if (found == reservations_.end()) return illegal("release");
  for (const auto& [at, chunk] : mapped_) {
    if (at >= base && at < base + found->second) return illegal("release");
  }
  for (const Address at : host_mapped_) {
    if (at >= base && at < base + found->second) return illegal("release");
  }
  const Status status = status_if_not_lost("release", api_.cuMemAddressFree_(at_device(base), found->second));
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
  const Address home = donated_.empty() ? 0 : donated_.back();
  if (home != 0) donated_.pop_back();
  return home;
}

Status CudaDriver::make(const CUmemAllocationProp& what, std::span<const CUmemLocation> users, Chunk* made) {
  CUdeviceptr home = 0;
  Status status = cuda_status("cuMemCreate", api_.cuMemCreate_(&made->handle, chunk_bytes_, &what, 0));
  if (!status.ok()) return status;
  status = cuda_status("cuMemAddressReserve", api_.cuMemAddressReserve_(&home, chunk_bytes_, chunk_bytes_, 0, 0));
  if (status.ok()) {
    status = cuda_status("cuMemMap", api_.map(home, chunk_bytes_, {&made->handle, 1}, users));
    if (!status.ok()) (void)api_.cuMemAddressFree_(home, chunk_bytes_);
  }
  if (!status.ok()) (void)api_.cuMemRelease_(made->handle);
  made->home = static_cast<Address>(home);
  return status;
}

void CudaDriver::unmake(const Chunk& gone) {
  if (!status_if_not_lost("cuMemUnmap", api_.cuMemUnmap_(at_device(gone.home), chunk_bytes_)).ok() ||
      !status_if_not_lost("cuMemAddressFree", api_.cuMemAddressFree_(at_device(gone.home), chunk_bytes_)).ok()) {
    fatal("memory that nothing uses cannot be unmapped");
  }
  (void)api_.cuMemRelease_(gone.handle);
}

Status CudaDriver::create(ChunkId* chunk) {
  const Current current(context_);
  std::lock_guard lock(mutex_);
  if (existing_ >= capacity_) return {Code::out_of_budget, "create", 0};
  Chunk made;
  made.exists = true;
  made.donated = !donated_.empty();
  Status status;
  if (made.donated) {
    made.home = donated_.back();
    status = cuda_status("cuMemRetainAllocationHandle",
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
  const Current current(context_);
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

Status CudaDriver::map_run(Address at, std::span<const ChunkId> chunks) {
  const Current current(context_);
  std::lock_guard lock(mutex_);
  if (at % chunk_bytes_ != 0 || !inside(reservations_, at, chunks.size() * chunk_bytes_)) return illegal("map");
  std::vector<CUmemGenericAllocationHandle> handles;
  for (const ChunkId chunk : chunks) {
    const Address here = at + handles.size() * chunk_bytes_;
    if (chunk >= chunks_.size() || !chunks_[chunk].exists || mapped_.contains(here) || host_mapped_.contains(here)) {
      return illegal("map");
    }
    handles.push_back(chunks_[chunk].handle);
  }
  const Status status = cuda_status("cuMemMap", api_.map(at_device(at), chunk_bytes_, handles, users_));
  for (std::size_t i = 0; status.ok() && i < chunks.size(); ++i) mapped_[at + i * chunk_bytes_] = chunks[i];
  return status;
}

Status CudaDriver::unmap_run(Address at, std::size_t chunks) {
  const Current current(context_);
  std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < chunks; ++i) {
    if (!mapped_.contains(at + i * chunk_bytes_)) return illegal("unmap");
  }
  Status status = status_if_not_lost("cuMemUnmap", api_.cuMemUnmap_(at_device(at), chunks * chunk_bytes_));
  for (std::size_t i = 0; i < chunks; ++i) {
    // What cannot be taken back in one call can be in several.
    if (!status.ok() && chunks > 1) {
      const Status single = status_if_not_lost("cuMemUnmap", api_.cuMemUnmap_(at_device(at + i * chunk_bytes_), chunk_bytes_));
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

Status CudaDriver::make_place(HostPlace* place) {
  const Current current(context_);
  std::lock_guard lock(mutex_);
  if (host_node_ < 0) return {Code::failed, "make_place", 0};
  Chunk made;
  const Status status = make(memory_of_host(host_node_), users_of_host(users_, host_node_), &made);
  if (!status.ok()) return status;
  places_[made.home] = made;
  *place = {reinterpret_cast<void*>(made.home), -1, 0};
  return kOk;
}

Status CudaDriver::drop_place(const HostPlace& place) {
  const Current current(context_);
  std::lock_guard lock(mutex_);
  const auto found = places_.find(reinterpret_cast<Address>(place.memory));
  if (found == places_.end()) return illegal("drop_place");
  unmake(found->second);
  places_.erase(found);
  return kOk;
}

Status CudaDriver::map_host(Address at, const HostPlace& place) {
  const Current current(context_);
  std::lock_guard lock(mutex_);
  const auto found = places_.find(reinterpret_cast<Address>(place.memory));
  if (found == places_.end()) return {Code::failed, "map_host", 0};
  const bool free = !mapped_.contains(at) && !host_mapped_.contains(at) && at % chunk_bytes_ == 0;
  if (!free || !inside(reservations_, at, chunk_bytes_)) return illegal("map_host");
  const Status status = cuda_status(
      "cuMemMap", api_.map(at_device(at), chunk_bytes_, {&found->second.handle, 1}, users_of_host(users_, host_node_)));
  if (status.ok()) host_mapped_.insert(at);
  return status;
}

Status CudaDriver::unmap_host(Address at) {
  const Current current(context_);
  std::lock_guard lock(mutex_);
  if (!host_mapped_.contains(at)) return illegal("unmap_host");
  const Status status = status_if_not_lost("cuMemUnmap", api_.cuMemUnmap_(at_device(at), chunk_bytes_));
  if (status.ok()) host_mapped_.erase(at);
  return status;
}

// --- copies ------------------------------------------------------------------------------------------------------------------

Status CudaDriver::copy_at(Lane lane, Address at, ChunkId chunk, const HostPlace& place, Bytes bytes, Ticket* ticket) {
  {
    std::lock_guard lock(mutex_);
    const auto leads = mapped_.find(at);
    const bool there = chunk < chunks_.size() && chunks_[chunk].exists &&
                       (at == 0 || (leads != mapped_.end() && leads->second == chunk));
    if (!there || place.memory == nullptr || bytes == 0 || bytes > chunk_bytes_) return illegal("copy");
    if (at == 0) at = chunks_[chunk].home;
  }
  return lanes_.copy(lane, at, place, bytes, ticket);
}

LiveHandles CudaDriver::live() const {
  const std::size_t copies = lanes_.copies();
  std::lock_guard lock(mutex_);
  return {reservations_.size(), existing_, mapped_.size(), host_mapped_.size(), copies, places_.size()};
}

}  // namespace vt
