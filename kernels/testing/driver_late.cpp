#include "testing/driver_late.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

namespace vt {

namespace {

using Lock = std::lock_guard<std::mutex>;
constexpr std::uint64_t kNothing = ~std::uint64_t{0};

void* pointer(Address at) { return reinterpret_cast<void*>(at); }

bool close_again(Address at, Bytes bytes) {
  return mmap(pointer(at), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED;
}

LateWork::Lane number(Lane lane) { return static_cast<LateWork::Lane>(lane); }

LateWork::Point point(const std::vector<std::vector<LateWork::Point>>& tickets, Ticket ticket) {
  return tickets.at(number(ticket.lane)).at(ticket.number - 1);
}

bool leads_to(const std::map<Address, std::uint64_t>& mapped, Address at, const std::set<ChunkId>& which) {
  const auto found = mapped.find(at);
  return found != mapped.end() && which.contains(static_cast<ChunkId>(found->second));
}

}  // namespace

LateDriver::LateDriver(Bytes chunk_bytes, std::size_t most_chunks, LateWork& work, Compute streams, bool places)
    : chunk_bytes_(chunk_bytes), most_(most_chunks), work_(work), kind_(streams), offers_places_(places), tickets_(2) {
  file_ = memfd_create("late device", 0);
  if (file_ < 0 || ftruncate(file_, static_cast<off_t>(most_ * chunk_bytes_)) != 0) fatal("no memory for the late device");
  home_ = static_cast<char*>(mmap(nullptr, most_ * chunk_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0));
  for (std::size_t i = most_; i-- > 0;) unused_.push_back(static_cast<ChunkId>(i));
  work_.add_lane();
  work_.add_lane();
  work_.mapped = [this](Address at) { return mapped_.contains(at) ? mapped_[at] : kNothing; };
}

LateDriver::~LateDriver() {
  munmap(home_, most_ * chunk_bytes_);
  for (const auto& [base, bytes] : reservations_) munmap(pointer(base), bytes);
  close(file_);
}

Status LateDriver::reserve(Bytes bytes, Address* base) {
  const Lock lock(mutex_);
  void* at = mmap(nullptr, bytes + chunk_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return {Code::failed, "reserve", errno};
  reservations_[reinterpret_cast<Address>(at)] = bytes + chunk_bytes_;
  *base = (reinterpret_cast<Address>(at) + chunk_bytes_ - 1) / chunk_bytes_ * chunk_bytes_;
  return kOk;
}

Status LateDriver::release(Address) {
  const Lock lock(mutex_);
  if (!mapped_.empty()) work_.complain("addresses are given back while something is mapped there");
  return kOk;
}

Status LateDriver::set_capacity(std::size_t chunks) {
  const Lock lock(mutex_);
  if (chunks < existing_.size() || chunks > most_) return illegal("set_capacity");
  capacity_ = chunks;
  return kOk;
}

Status LateDriver::create(ChunkId* chunk) {
  const Lock lock(mutex_);
  if (existing_.size() >= capacity_) return {Code::out_of_budget, "create", 0};
  *chunk = unused_.back();
  unused_.pop_back();
  existing_.insert(*chunk);
  return kOk;
}

Status LateDriver::destroy(ChunkId chunk) {
  const Lock lock(mutex_);
  if (!existing_.erase(chunk)) return illegal("destroy");
  if (work_.pending([&](const auto& item) { return item.chunk == chunk; })) {
    work_.complain("a chunk is destroyed while it is copied");
  }
  forget(chunk);
  return kOk;
}

void LateDriver::forget(ChunkId chunk) {
  for (const auto& [at, mapped] : mapped_) {
    if (mapped == chunk) work_.complain("memory is given back while it is mapped");
  }
  std::memset(home_ + chunk * chunk_bytes_, 0xdd, chunk_bytes_);  // whoever still reads it shall notice
  unused_.push_back(chunk);
}

// --- memory of the host: pieces of the same memory that are no chunks ------------------------------------------------------

Status LateDriver::make_place(HostPlace* place) {
  const Lock lock(mutex_);
  if (!offers_places_ || unused_.empty()) return {Code::failed, "make_place", 0};
  *place = {home_ + *places_.insert(unused_.back()).first * chunk_bytes_, -1, 0};
  unused_.pop_back();
  return kOk;
}

Status LateDriver::drop_place(const HostPlace& place) {
  const Lock lock(mutex_);
  const ChunkId piece = place_of(place.memory);
  if (!places_.erase(piece)) return illegal("drop_place");
  forget(piece);
  return kOk;
}

Status LateDriver::map_host(Address at, const HostPlace& place) {
  const Lock lock(mutex_);
  const ChunkId piece = place_of(place.memory);
  return piece == kNone ? Status{Code::failed, "map_host", 0} : map_one(at, piece);
}

Status LateDriver::unmap_host(Address at) {
  const Lock lock(mutex_);
  return leads_to(mapped_, at, places_) ? unmap_one(at) : illegal("unmap_host");
}

ChunkId LateDriver::place_of(const void* memory) const {
  const auto piece = static_cast<ChunkId>((static_cast<const char*>(memory) - home_) / static_cast<std::ptrdiff_t>(chunk_bytes_));
  return places_.contains(piece) && home_ + piece * chunk_bytes_ == memory ? piece : kNone;
}

Status LateDriver::map_run(Address at, std::span<const ChunkId> chunks) {
  const Lock lock(mutex_);
  Status status;
  for (std::size_t i = 0; i < chunks.size() && status.ok(); ++i) {
    status = existing_.contains(chunks[i]) ? map_one(at + i * chunk_bytes_, chunks[i]) : illegal("map");
    while (!status.ok() && i-- > 0) (void)unmap_one(at + i * chunk_bytes_);
  }
  return status;
}

Status LateDriver::map_one(Address at, ChunkId chunk) {
  if (mapped_.contains(at)) return illegal("map");
  if (mmap(pointer(at), chunk_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file_,
           static_cast<off_t>(chunk * chunk_bytes_)) == MAP_FAILED) {
    return {Code::failed, "map", errno};
  }
  mapped_[at] = chunk;
  return kOk;
}

Status LateDriver::unmap_run(Address at, std::size_t chunks) {
  const Lock lock(mutex_);
  for (std::size_t i = 0; i < chunks; ++i) {
    if (!leads_to(mapped_, at + i * chunk_bytes_, existing_)) return illegal("unmap");
  }
  for (std::size_t i = 0; i < chunks; ++i) {
    if (!unmap_one(at + i * chunk_bytes_).ok()) fatal("addresses of the late device cannot be closed");
  }
  return kOk;
}

Status LateDriver::unmap_one(Address at) {
  if (!mapped_.erase(at)) return illegal("unmap");
  if (work_.pending([&](const auto& item) {
        return std::any_of(item.uses.begin(), item.uses.end(), [&](const auto& use) { return use.first == at; });
      })) {
    work_.complain("an address is unmapped while a kernel that was asked for uses it");
  }
  return close_again(at, chunk_bytes_) ? kOk : Status{Code::failed, "unmap", errno};
}

Status LateDriver::copy_at(Lane lane, Address at, ChunkId chunk, const HostPlace& place, Bytes bytes, Ticket* ticket) {
  const Lock lock(mutex_);
  const auto body = [lane, host = place.memory, home = home_ + chunk * chunk_bytes_, bytes] {
    lane == Lane::out ? std::memcpy(host, home, bytes) : std::memcpy(home, host, bytes);
  };
  const LateWork::Uses uses = at != 0 ? LateWork::Uses{{at, chunk}} : LateWork::Uses{};
  return issue(lane, work_.push(number(lane), {body, uses, chunk}), ticket);
}

CopyState LateDriver::poll(Ticket ticket, int*) {
  const Lock lock(mutex_);
  return work_.poll(point(tickets_, ticket)) ? CopyState::done : CopyState::pending;
}

void LateDriver::wait(Ticket ticket) {
  const Lock lock(mutex_);
  work_.wait(point(tickets_, ticket));
}

Status LateDriver::adopt(void* stream, Lane* lane) {
  const Lock lock(mutex_);
  const auto [entry, fresh] = streams_.try_emplace(stream, static_cast<Lane>(tickets_.size()));
  if (fresh) {
    tickets_.emplace_back();
    work_.add_lane();
  }
  *lane = entry->second;
  return kOk;
}

Status LateDriver::issue(Lane lane, LateWork::Point end, Ticket* ticket) {
  auto& tickets = tickets_.at(number(lane));
  tickets.push_back(end);
  *ticket = {lane, tickets.size()};
  return kOk;
}

Status LateDriver::mark(Lane lane, Ticket* ticket) {
  const Lock lock(mutex_);
  return issue(lane, work_.end_of(number(lane)), ticket);
}

Status LateDriver::order(Lane later, Ticket earlier) {
  const Lock lock(mutex_);
  if (later >= Lane::first_stream && kind_ == Compute::at_once) {
    work_.wait(point(tickets_, earlier));
  } else {
    work_.order(number(later), point(tickets_, earlier));
  }
  return kOk;
}

Status LateDriver::stamp(Lane lane) {
  const Lock lock(mutex_);
  stamps_->push_back(0);
  const auto keep = [stamps = stamps_, i = stamps_->size() - 1] {
    stamps->at(i) = static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  };
  if (lane >= Lane::first_stream && kind_ == Compute::at_once) {
    keep();
  } else {
    work_.push(number(lane), {keep});
  }
  return kOk;
}

Status LateDriver::read_stamps(std::vector<std::uint64_t>* passed) {
  const Lock lock(mutex_);
  for (const std::uint64_t moment : *stamps_) passed->push_back(moment - std::min(moment, stamps_->front()));
  stamps_ = std::make_shared<std::vector<std::uint64_t>>();  // what was not passed writes to the old one
  return kOk;
}

LiveHandles LateDriver::live() const {
  const Lock lock(mutex_);
  LiveHandles live{reservations_.size(), existing_.size(), 0, 0, 0, places_.size()};
  for (const auto& mapping : mapped_) ++(leads_to(mapped_, mapping.first, places_) ? live.host_mappings : live.mappings);
  return live;
}

}  // namespace vt
