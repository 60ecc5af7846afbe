#include "device/driver_host.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "device/host_file.h"
#include "device/pages.h"

namespace vt {

using namespace pages;

namespace {

Status failed(const char* call) {
  const bool many = errno == ENOMEM;  // there is memory enough: it is moved
  return {Code::failed, many ? "no more mappings (vm.max_map_count, ulimit -v; larger chunks need fewer)" : call, errno};
}

}  // namespace

HostDriver::HostDriver(Bytes chunk_bytes, double link_bytes_per_second, Team team)
    : chunk_bytes_(chunk_bytes),
      out_(Lane::out, link_bytes_per_second, team),
      in_(Lane::in, link_bytes_per_second, team) {
  const auto page = static_cast<Bytes>(sysconf(_SC_PAGESIZE));
  if (!std::has_single_bit(chunk_bytes) || chunk_bytes < page) {
    throw InvalidUse("chunk must be a power of two of at least one page (" + format_bytes(page) + "), got " +
                     std::to_string(chunk_bytes) + " bytes");
  }
  Address probe = 0;
  if (!reserve(2 * chunk_bytes, &probe).ok() || mprotect(pointer(probe), page, PROT_READ | PROT_WRITE) != 0 ||
      !pages::move(probe, probe + chunk_bytes, page)) {
    throw InvalidUse("this kernel cannot move memory in place (mremap with MREMAP_DONTUNMAP, Linux 5.7 or newer): " +
                     std::string(std::strerror(errno)));
  }
  (void)release(probe);
}

HostDriver::~HostDriver() {
  for (const auto& [base, reservation] : reservations_) munmap(reservation.raw, reservation.raw_bytes);
  for (const Reservation& home : homes_) munmap(home.raw, home.raw_bytes);
}

Status HostDriver::reserve(Bytes bytes, Address* base) {
  std::lock_guard lock(mutex_);
  if (bytes == 0 || bytes % chunk_bytes_ != 0) return illegal("reserve");
  Reservation made{bytes, nullptr, 0};
  if (!reserve_aligned(bytes, std::max(chunk_bytes_, kHuge), &made.raw, &made.raw_bytes, base)) {
    return failed("reserve");
  }
  reservations_.emplace(*base, made);
  return kOk;
}

Status HostDriver::release(Address base) {
  std::lock_guard lock(mutex_);
  const auto found = reservations_.find(base);
  if (found == reservations_.end()) return illegal("release");
  const auto inside = [&](const auto& entry) { return entry.first >= base && entry.first < base + found->second.bytes; };
  if (std::any_of(mapped_.begin(), mapped_.end(), inside) ||
      std::any_of(host_mapped_.begin(), host_mapped_.end(), inside)) {
    return illegal("release");
  }
  if (!lingering_.clear(base, found->second.bytes)) return failed("release");
  munmap(found->second.raw, found->second.raw_bytes);
  reservations_.erase(found);
  return kOk;
}

Status HostDriver::set_capacity(std::size_t chunks) {
  std::lock_guard lock(mutex_);
  if (chunks < existing_) return illegal("set_capacity");
  if (chunks > chunks_.size()) {
    const std::size_t more = chunks - chunks_.size();
    const Bytes bytes = more * chunk_bytes_;
    Reservation home{bytes, nullptr, 0};
    Address base = 0;
    if (!reserve_aligned(bytes, std::max(chunk_bytes_, kHuge), &home.raw, &home.raw_bytes, &base)) {
      return failed("set_capacity");
    }
    // Huge pages cut first-touch cost to a quarter and keep a move at a few microseconds. Advice only.
    if (chunk_bytes_ % kHuge == 0) madvise(pointer(base), bytes, MADV_HUGEPAGE);
    homes_.push_back(home);
    for (std::size_t i = more; i-- > 0;) unused_.push_back(static_cast<ChunkId>(chunks_.size() + i));
    for (std::size_t i = 0; i < more; ++i) chunks_.push_back({.home = base + i * chunk_bytes_, .last_copy = {}});
  }
  capacity_ = chunks;
  return kOk;
}

Status HostDriver::create(ChunkId* chunk) {
  std::lock_guard lock(mutex_);
  if (existing_ >= capacity_ || unused_.empty()) return {Code::out_of_budget, "create", 0};
  const ChunkId id = unused_.back();
  if (mprotect(pointer(chunks_[id].home), chunk_bytes_, PROT_READ | PROT_WRITE) != 0) return failed("create");
  unused_.pop_back();
  chunks_[id].exists = true;
  ++existing_;
  *chunk = id;
  return kOk;
}

Status HostDriver::destroy(ChunkId chunk) {
  std::lock_guard lock(mutex_);
  Chunk* found = find(chunk);
  if (found == nullptr || found->mapped_at != 0 || !idle(*found)) return illegal("destroy");
  if (!lingering_.send_home(chunk)) return failed("destroy");
  madvise(pointer(found->home), chunk_bytes_, MADV_DONTNEED);
  mprotect(pointer(found->home), chunk_bytes_, PROT_NONE);
  found->exists = false;
  unused_.push_back(chunk);
  --existing_;
  return kOk;
}

Status HostDriver::map(Address at, ChunkId chunk, Access access) {
  std::lock_guard lock(mutex_);
  Chunk* found = find(chunk);
  const bool ready = found != nullptr && found->mapped_at == 0 && idle(*found);
  if (!ready || access == Access::none || !free_address(at)) return illegal("map");
  const Address lingers = lingering_.at(chunk), from = lingers != 0 ? lingers : found->home;
  if (from != at && !lingering_.clear(at, chunk_bytes_)) return failed("map");
  // Before the move, so that no moment and no failure leaves a read-only mapping writable.
  if (access == Access::read && mprotect(pointer(from), chunk_bytes_, PROT_READ) != 0) return failed("map");
  if (from != at && !pages::move(from, at, chunk_bytes_)) {
    const Status status = failed("map");
    open_again(from, chunk_bytes_);
    return status;
  }
  if (lingers != 0) {
    lingering_.forget(chunk);
    if (from != at) reserve_again(from, chunk_bytes_);  // where it fails it is open, and nobody's
  }
  found->mapped_at = at;
  mapped_.emplace(at, Mapping{chunk, access});
  return kOk;
}

Status HostDriver::protect(Address at, Access access) {
  std::lock_guard lock(mutex_);
  const auto entry = mapped_.find(at);
  if (access == Access::none || entry == mapped_.end()) return illegal("protect");
  if (mprotect(pointer(at), chunk_bytes_, protection(access)) != 0) return failed("protect");
  entry->second.access = access;
  return kOk;
}

Status HostDriver::unmap(Address at, Door door) {
  std::lock_guard lock(mutex_);
  const auto entry = mapped_.find(at);
  if (entry == mapped_.end()) return illegal("unmap");
  Chunk& chunk = chunks_[entry->second.chunk];
  if (door == Door::ajar && entry->second.access == Access::write) {
    lingering_.add(entry->second.chunk, at, chunk.home);
    chunk.mapped_at = 0;
    mapped_.erase(entry);
    return kOk;
  }
  // Close the door first: what DONTUNMAP leaves at `at` must not be a readable page of zeros.
  if (mprotect(pointer(at), chunk_bytes_, PROT_NONE) != 0) return failed("unmap");
  if (!pages::move(at, chunk.home, chunk_bytes_)) {
    const Status status = failed("unmap");
    open_again(at, chunk_bytes_, entry->second.access);  // a read-only mapping must not come back writable
    return status;
  }
  open_again(chunk.home, chunk_bytes_);
  reserve_again(at, chunk_bytes_);  // where it fails the address stays closed all the same
  chunk.mapped_at = 0;
  mapped_.erase(entry);
  return kOk;
}

Status HostDriver::map_host(Address at, const HostPlace& place) {
  std::lock_guard lock(mutex_);
  if (!free_address(at)) return illegal("map_host");
  if (!lingering_.clear(at, chunk_bytes_)) return failed("map_host");
  if (place.memory != nullptr) {
    if (!pages::move(reinterpret_cast<Address>(place.memory), at, chunk_bytes_)) return failed("map_host");
  } else if (!still_there(place) || mmap(pointer(at), chunk_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                                         place.file, place.offset) == MAP_FAILED) {
    return failed("map_host");
  }
  host_mapped_.emplace(at, place);
  return kOk;
}

Status HostDriver::unmap_host(Address at) {
  std::lock_guard lock(mutex_);
  const auto entry = host_mapped_.find(at);
  if (entry == host_mapped_.end()) return illegal("unmap_host");
  if (void* memory = entry->second.memory) {
    if (mprotect(pointer(at), chunk_bytes_, PROT_NONE) != 0) return failed("unmap_host");
    if (!pages::move(at, reinterpret_cast<Address>(memory), chunk_bytes_)) {
      const Status status = failed("unmap_host");
      open_again(at, chunk_bytes_);
      return status;
    }
    open_again(reinterpret_cast<Address>(memory), chunk_bytes_);
    reserve_again(at, chunk_bytes_);  // where it fails the address stays closed all the same
  } else if (!reserve_again(at, chunk_bytes_)) {
    return failed("unmap_host");
  }
  host_mapped_.erase(entry);
  return kOk;
}

Status HostDriver::copy_out(ChunkId from, const HostPlace& to, Bytes bytes, Ticket* ticket) {
  return copy(Lane::out, from, to, bytes, ticket);
}

Status HostDriver::copy_in(const HostPlace& from, ChunkId to, Bytes bytes, Ticket* ticket) {
  return copy(Lane::in, to, from, bytes, ticket);
}

Status HostDriver::copy(Lane which, ChunkId chunk, const HostPlace& place, Bytes bytes, Ticket* ticket) {
  std::lock_guard lock(mutex_);
  const char* call = which == Lane::out ? "copy_out" : "copy_in";
  Chunk* found = find(chunk);
  const bool ready = found != nullptr && found->mapped_at == 0 && idle(*found);
  if (!ready || bytes == 0 || bytes > chunk_bytes_) return illegal(call);
  if (!lingering_.send_home(chunk)) return failed(call);  // a copy's memory must not move
  *ticket = {which, lane(which).submit(pointer(found->home), place, bytes)};
  found->last_copy = *ticket;
  return kOk;
}

CopyState HostDriver::poll(Ticket ticket, int* error) { return lane(ticket.lane).poll(ticket.number, error); }
void HostDriver::wait(Ticket ticket) { lane(ticket.lane).wait(ticket.number); }
CopyState HostDriver::cancel(Ticket ticket) { return lane(ticket.lane).cancel(ticket.number); }
void HostDriver::retire(Ticket ticket) { lane(ticket.lane).retire(ticket.number); }

void HostDriver::lend_hands() {
  out_.lend_hands();
  in_.lend_hands();
}

void HostDriver::before_fork() {
  mutex_.lock();
  out_.before_fork();
  in_.before_fork();
}

void HostDriver::after_fork(bool in_child) {
  in_.after_fork(in_child);
  out_.after_fork(in_child);
  mutex_.unlock();
}

LiveHandles HostDriver::live() const {
  std::lock_guard lock(mutex_);
  auto& self = const_cast<HostDriver&>(*this);  // the lanes count under their own mutex
  return {reservations_.size(), existing_, mapped_.size(), host_mapped_.size(), self.out_.live() + self.in_.live()};
}

bool HostDriver::free_address(Address at) const {
  auto after = reservations_.upper_bound(at);
  if (at % chunk_bytes_ != 0 || after == reservations_.begin()) return false;
  const auto& [base, reservation] = *std::prev(after);
  return at < base + reservation.bytes && !mapped_.contains(at) && !host_mapped_.contains(at);
}

bool HostDriver::idle(const Chunk& chunk) {
  return chunk.last_copy.number == 0 || poll(chunk.last_copy, nullptr) != CopyState::pending;
}

HostDriver::Chunk* HostDriver::find(ChunkId chunk) {
  return chunk < chunks_.size() && chunks_[chunk].exists ? &chunks_[chunk] : nullptr;
}

}  // namespace vt
