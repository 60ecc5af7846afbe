// An ordered device in ordinary memory whose work happens late: what a GPU does, made visible and repeatable.
//
// Covers: lanes whose work is done only when somebody waits or asks, in any order the tickets allow (drawn from a seed); kernels
// that read and write through mapped addresses; complaints about what a GPU would not forgive: an address unmapped or led
// elsewhere while a kernel that was asked for may still use it, a chunk destroyed while it is copied or mapped.
// Leaves: speed, threads. Nothing here runs by itself.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "driver.h"

namespace vt {

class LateDriver final : public Driver {
 public:
  using Lane = Ticket::Lane;

  // `complaints` outlives the driver, which is the engine's.
  LateDriver(Bytes chunk_bytes, std::size_t most_chunks, std::uint32_t seed, std::vector<std::string>& complaints)
      : chunk_bytes_(chunk_bytes), most_(most_chunks), random_(seed), lanes_(2), complaints_(complaints) {
    file_ = memfd_create("late device", 0);
    if (file_ < 0 || ftruncate(file_, static_cast<off_t>(most_ * chunk_bytes_)) != 0) fatal("no memory for the late device");
    home_ = static_cast<char*>(mmap(nullptr, most_ * chunk_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0));
    for (std::size_t i = most_; i-- > 0;) unused_.push_back(static_cast<ChunkId>(i));
  }
  ~LateDriver() override {
    munmap(home_, most_ * chunk_bytes_);
    for (const auto& [base, bytes] : reservations_) munmap(pointer(base), bytes);
    close(file_);
  }

  // --- what a stream is asked to do ------------------------------------------------------------------------
  // `body` runs some time later, and uses the chunks at `addresses`.
  void launch(Lane stream, std::vector<Address> addresses, std::function<void()> body) {
    Item item{std::move(body), {}, {}};
    for (const Address at : addresses) {
      if (!mapped_.contains(at)) return complain("a kernel uses an address that leads nowhere");
      item.uses.emplace_back(at, mapped_[at]);
    }
    push(stream, std::move(item));
  }
  // What a program does itself to use a tensor of one stream on another.
  void join(Lane later, Lane earlier) { of(later).after.emplace_back(earlier, of(earlier).asked); }
  // Everything that was asked for is done.
  void drain() {
    while (step()) {
    }
  }
  std::size_t most_existing() const { return peak_; }

  // --- the port --------------------------------------------------------------------------------------------
  Bytes chunk_bytes() const noexcept override { return chunk_bytes_; }
  Status reserve(Bytes bytes, Address* base) override {
    void* at = mmap(nullptr, bytes + chunk_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    reservations_[reinterpret_cast<Address>(at)] = bytes + chunk_bytes_;
    *base = (reinterpret_cast<Address>(at) + chunk_bytes_ - 1) / chunk_bytes_ * chunk_bytes_;
    return kOk;
  }
  Status release(Address) override {
    if (!mapped_.empty()) complain("addresses are given back while something is mapped there");
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
    peak_ = std::max(peak_, existing_.size());
    return kOk;
  }
  Status destroy(ChunkId chunk) override {
    if (!existing_.erase(chunk)) return {Code::illegal, "destroy", 0};
    for (const auto& [at, mapped] : mapped_) {
      if (mapped == chunk) complain("a chunk is destroyed while it is mapped");
    }
    for (const auto& lane : lanes_) {
      for (const Item& item : lane.queue) {
        if (item.copies == chunk) complain("a chunk is destroyed while it is copied");
      }
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
    for (const auto& lane : lanes_) {
      for (const Item& item : lane.queue) {
        for (const auto& use : item.uses) {
          if (use.first == at) complain("an address is unmapped while a kernel that was asked for uses it");
        }
      }
    }
    mmap(pointer(at), chunk_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    return kOk;
  }
  Status map_host(Address, const HostPlace&) override { return {Code::failed, "map_host", 0}; }
  Status unmap_host(Address) override { return {Code::illegal, "unmap_host", 0}; }
  Status copy_out(ChunkId from, const HostPlace& to, Bytes bytes, Ticket* ticket) override {
    return copy(Lane::out, from, [to = to.memory, at = home_ + from * chunk_bytes_, bytes] { std::memcpy(to, at, bytes); }, ticket);
  }
  Status copy_in(const HostPlace& from, ChunkId to, Bytes bytes, Ticket* ticket) override {
    return copy(Lane::in, to, [from = from.memory, at = home_ + to * chunk_bytes_, bytes] { std::memcpy(at, from, bytes); }, ticket);
  }
  CopyState poll(Ticket ticket, int*) override {
    if (random_() % 2 == 0) step();
    return passed(ticket) ? CopyState::done : CopyState::pending;
  }
  void wait(Ticket ticket) override {
    while (!passed(ticket)) {
      if (!step()) fatal("nothing can go on: the order that was asked for is a circle");
    }
  }
  CopyState cancel(Ticket ticket) override { return wait(ticket), CopyState::done; }
  void retire(Ticket) override {}
  LaneTimes times(Lane) const override { return {}; }
  bool ordered() const noexcept override { return true; }
  Status adopt(void* stream, Lane* lane) override {
    const auto [entry, fresh] = streams_.try_emplace(stream, static_cast<Lane>(lanes_.size()));
    if (fresh) lanes_.emplace_back();
    *lane = entry->second;
    return kOk;
  }
  Status mark(Lane lane, Ticket* ticket) override {
    push(lane, {[] {}, {}, {}});
    return issue(lane, ticket);
  }
  Status order(Lane later, Ticket earlier) override {
    if (earlier.number == 0 || earlier.number > of(earlier.lane).tickets.size()) {
      complain("an order with a ticket that does not exist");
    } else {
      of(later).after.emplace_back(earlier.lane, of(earlier.lane).tickets[earlier.number - 1]);
    }
    return kOk;
  }
  void before_fork() override {}
  void after_fork(bool) override {}
  LiveHandles live() const override { return {reservations_.size(), existing_.size(), mapped_.size(), 0, 0}; }

 private:
  using Point = std::pair<Lane, std::uint64_t>;  // passed when so many items of the lane are done
  struct Item {
    std::function<void()> body;
    std::vector<std::pair<Address, ChunkId>> uses;
    std::vector<Point> after;
    ChunkId copies = kNone;
  };
  struct Queue {
    std::deque<Item> queue;
    std::uint64_t asked = 0, done = 0;
    std::vector<std::uint64_t> tickets;  // how many items must be done for each
    std::vector<Point> after;            // of the next item
  };

  static void* pointer(Address at) { return reinterpret_cast<void*>(at); }
  Queue& of(Lane lane) { return lanes_.at(static_cast<std::size_t>(lane)); }
  void complain(std::string what) { complaints_.push_back(std::move(what)); }
  bool passed(Ticket ticket) { return of(ticket.lane).done >= of(ticket.lane).tickets.at(ticket.number - 1); }

  void push(Lane lane, Item item) {
    Queue& queue = of(lane);
    item.after = std::exchange(queue.after, {});
    queue.queue.push_back(std::move(item));
    ++queue.asked;
  }
  Status issue(Lane lane, Ticket* ticket) {
    of(lane).tickets.push_back(of(lane).asked);
    *ticket = {lane, of(lane).tickets.size()};
    return kOk;
  }
  Status copy(Lane lane, ChunkId chunk, std::function<void()> body, Ticket* ticket) {
    push(lane, {std::move(body), {}, {}, chunk});
    return issue(lane, ticket);
  }

  // Does the next item of a lane, if what it comes after is done.
  bool go_on(Queue& queue) {
    if (queue.queue.empty()) return false;
    Item& item = queue.queue.front();
    const bool ready = std::all_of(item.after.begin(), item.after.end(),
                                   [&](const Point& point) { return of(point.first).done >= point.second; });
    if (!ready) return false;
    for (const auto& [at, chunk] : item.uses) {
      const auto found = mapped_.find(at);
      if (found == mapped_.end() || found->second != chunk) {
        complain("an address leads elsewhere when a kernel runs");
        item.body = [] {};
      }
    }
    const Item taken = std::move(item);
    queue.queue.pop_front();
    taken.body();
    ++queue.done;
    return true;
  }

  // Does one item of some lane that can go on. Lanes are favoured by turns, so that now one of them is far behind and now another.
  bool step() {
    if (random_() % 64 == 0) favoured_ = random_() % lanes_.size();
    const std::size_t first = random_() % 4 != 0 ? favoured_ : random_() % lanes_.size();
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      if (go_on(lanes_[(first + i) % lanes_.size()])) return true;
    }
    return false;
  }

  const Bytes chunk_bytes_;
  const std::size_t most_;
  std::mt19937 random_;
  int file_ = -1;
  char* home_ = nullptr;
  std::size_t capacity_ = 0, peak_ = 0, favoured_ = 0;
  std::vector<ChunkId> unused_;
  std::set<ChunkId> existing_;
  std::map<Address, ChunkId> mapped_;
  std::map<Address, Bytes> reservations_;
  std::map<void*, Lane> streams_;
  std::vector<Queue> lanes_;
  std::vector<std::string>& complaints_;
};

}  // namespace vt
