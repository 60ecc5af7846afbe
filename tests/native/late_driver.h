// An ordered device in ordinary memory whose work happens late (late_work.h): the port alone, without CUDA's ways.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <set>

#include "driver.h"
#include "late_work.h"

namespace vt {

class LateDriver final : public Driver {
 public:
  using Lane = Ticket::Lane;

  // `work` outlives the driver, which is the engine's.
  LateDriver(Bytes chunk_bytes, std::size_t most_chunks, LateWork& work)
      : chunk_bytes_(chunk_bytes), most_(most_chunks), work_(work), tickets_(2) {
    file_ = memfd_create("late device", 0);
    if (file_ < 0 || ftruncate(file_, static_cast<off_t>(most_ * chunk_bytes_)) != 0) fatal("no memory for the late device");
    home_ = static_cast<char*>(mmap(nullptr, most_ * chunk_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0));
    for (std::size_t i = most_; i-- > 0;) unused_.push_back(static_cast<ChunkId>(i));
    work_.add_lane();
    work_.add_lane();
    work_.mapped = [this](Address at) { return mapped_.contains(at) ? mapped_[at] : ~std::uint64_t{0}; };
  }
  ~LateDriver() override {
    munmap(home_, most_ * chunk_bytes_);
    for (const auto& [base, bytes] : reservations_) munmap(pointer(base), bytes);
    close(file_);
  }

  Bytes chunk_bytes() const noexcept override { return chunk_bytes_; }
  Status reserve(Bytes bytes, Address* base) override {
    void* at = mmap(nullptr, bytes + chunk_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    reservations_[reinterpret_cast<Address>(at)] = bytes + chunk_bytes_;
    *base = (reinterpret_cast<Address>(at) + chunk_bytes_ - 1) / chunk_bytes_ * chunk_bytes_;
    return kOk;
  }
  Status release(Address) override {
    if (!mapped_.empty()) work_.complain("addresses are given back while something is mapped there");
    return kOk;
  }
  Status set_capacity(std::size_t chunks) override {
    if (chunks < existing_.size() || chunks > most_) return {Code::illegal, "set_capacity", 0};
    capacity_ = chunks;
    return kOk;
  }
  Status create(ChunkId* chunk) override {
    if (existing_.size() >= capacity_) return {Code::out_of_budget, "create", 0};
    *chunk = unused_.back();
    unused_.pop_back();
    existing_.insert(*chunk);
    return kOk;
  }
  Status destroy(ChunkId chunk) override {
    if (!existing_.erase(chunk)) return {Code::illegal, "destroy", 0};
    for (const auto& [at, mapped] : mapped_) {
      if (mapped == chunk) work_.complain("a chunk is destroyed while it is mapped");
    }
    if (work_.pending([&](const auto& item) { return item.chunk == chunk; })) {
      work_.complain("a chunk is destroyed while it is copied");
    }
    std::memset(home_ + chunk * chunk_bytes_, 0xdd, chunk_bytes_);
    unused_.push_back(chunk);
    return kOk;
  }
  Status map(Address at, ChunkId chunk, Access) override {
    if (mapped_.contains(at) || !existing_.contains(chunk)) return {Code::illegal, "map", 0};
    if (mmap(pointer(at), chunk_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file_,
             static_cast<off_t>(chunk * chunk_bytes_)) == MAP_FAILED) {
      return {Code::failed, "map", errno};
    }
    mapped_[at] = chunk;
    return kOk;
  }
  Status protect(Address, Access) override { return {Code::illegal, "protect", 0}; }
  Status unmap(Address at) override {
    if (!mapped_.erase(at)) return {Code::illegal, "unmap", 0};
    if (work_.pending([&](const auto& item) {
          return std::any_of(item.uses.begin(), item.uses.end(), [&](const auto& use) { return use.first == at; });
        })) {
      work_.complain("an address is unmapped while a kernel that was asked for uses it");
    }
    mmap(pointer(at), chunk_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    return kOk;
  }
  Status map_host(Address, const HostPlace&) override { return {Code::failed, "map_host", 0}; }
  Status unmap_host(Address) override { return {Code::illegal, "unmap_host", 0}; }
  Status copy_out(ChunkId from, const HostPlace& to, Bytes bytes, Ticket* ticket) override {
    const auto end = work_.push(0, {[to = to.memory, at = home_ + from * chunk_bytes_, bytes] { std::memcpy(to, at, bytes); }, {}, from});
    return issue(Lane::out, end, ticket);
  }
  Status copy_in(const HostPlace& from, ChunkId to, Bytes bytes, Ticket* ticket) override {
    const auto end = work_.push(1, {[from = from.memory, at = home_ + to * chunk_bytes_, bytes] { std::memcpy(at, from, bytes); }, {}, to});
    return issue(Lane::in, end, ticket);
  }
  CopyState poll(Ticket ticket, int*) override {
    return work_.poll(point(ticket)) ? CopyState::done : CopyState::pending;
  }
  void wait(Ticket ticket) override { work_.wait(point(ticket)); }
  CopyState cancel(Ticket ticket) override { return wait(ticket), CopyState::done; }
  void retire(Ticket) override {}
  LaneTimes times(Lane) const override { return {}; }
  bool ordered() const noexcept override { return true; }
  Status adopt(void* stream, Lane* lane) override {
    const auto [entry, fresh] = streams_.try_emplace(stream, static_cast<Lane>(tickets_.size()));
    if (fresh) tickets_.emplace_back(), work_.add_lane();
    *lane = entry->second;
    return kOk;
  }
  Status mark(Lane lane, Ticket* ticket) override {
    return issue(lane, work_.end_of(static_cast<std::size_t>(lane)), ticket);
  }
  Status order(Lane later, Ticket earlier) override {
    work_.order(static_cast<std::size_t>(later), point(earlier));
    return kOk;
  }
  void before_fork() override {}
  void after_fork(bool) override {}
  LiveHandles live() const override { return {reservations_.size(), existing_.size(), mapped_.size(), 0, 0}; }

 private:
  static void* pointer(Address at) { return reinterpret_cast<void*>(at); }
  Status issue(Lane lane, LateWork::Point end, Ticket* ticket) {
    auto& tickets = tickets_.at(static_cast<std::size_t>(lane));
    tickets.push_back(end);
    *ticket = {lane, tickets.size()};
    return kOk;
  }
  LateWork::Point point(Ticket ticket) const {
    return tickets_.at(static_cast<std::size_t>(ticket.lane)).at(ticket.number - 1);
  }

  const Bytes chunk_bytes_;
  const std::size_t most_;
  LateWork& work_;
  int file_ = -1;
  char* home_ = nullptr;
  std::size_t capacity_ = 0;
  std::vector<ChunkId> unused_;
  std::set<ChunkId> existing_;
  std::map<Address, std::uint64_t> mapped_;
  std::map<Address, Bytes> reservations_;
  std::map<void*, Lane> streams_;
  std::vector<std::vector<LateWork::Point>> tickets_;  // by lane
};

}  // namespace vt
