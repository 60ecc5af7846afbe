// Work that happens late: lanes whose items are done only when somebody waits or asks, in any order their points allow.
//
// Covers: what a GPU's streams and events do, made repeatable (the order is drawn from a seed), and the complaints about what a
// GPU would not forgive. Nothing here runs by itself, and there are no threads.
// Leaves: what the items are. For tests: driver_late.h is a device made of it, tests/native/standin_cuda.cpp a CUDA driver.
// Thread-safety: none.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace vt {

class LateWork {
 public:
  using Lane = std::size_t;
  using Point = std::pair<Lane, std::uint64_t>;  // passed when so many items of the lane are done
  using Uses = std::vector<std::pair<std::uintptr_t, std::uint64_t>>;  // addresses, and what must be mapped there

  struct Item {
    std::function<void()> body;
    Uses uses = {};
    std::uint64_t chunk = ~std::uint64_t{0};  // a chunk that is copied
    std::vector<Point> after = {};
  };

  void begin(std::uint32_t seed) {
    *this = LateWork();
    random_.seed(seed);
  }

  Lane add_lane() {
    lanes_.emplace_back();
    return lanes_.size() - 1;
  }
  // Nothing may be asked of it any more; what was goes on.
  void end_lane(Lane lane) { lanes_.at(lane).ended = true; }
  // What is asked of `later` next begins when the point is passed.
  void order(Lane later, Point point) {
    ++orders;
    if (lanes_.at(later).ended) complain("a stream that is gone was asked to wait");
    lanes_.at(later).after.push_back(point);
  }
  Point push(Lane lane, Item item) {
    Queue& queue = lanes_.at(lane);
    if (queue.ended) complain("a stream that is gone was asked for something");
    item.after = std::exchange(queue.after, {});
    queue.items.push_back(std::move(item));
    return {lane, ++queue.asked};
  }
  // All that was asked of the lane so far, what it comes after included.
  Point end_of(Lane lane) { return push(lane, {[] {}}); }
  bool passed(Point point) const { return lanes_.at(point.first).done >= point.second; }
  // Asking may let something happen.
  bool poll(Point point) {
    if (random_() % 2 == 0) step();
    return passed(point);
  }
  void wait(Point point) {
    while (!passed(point)) {
      if (!step()) {
        complain("nothing can go on: the order that was asked for is a circle");
        std::abort();
      }
    }
  }
  void drain() {
    while (step()) {
    }
  }

  // Any item not yet done for which `what` holds.
  bool pending(const std::function<bool(const Item&)>& what) const {
    return std::any_of(lanes_.begin(), lanes_.end(),
                       [&](const Queue& queue) { return std::any_of(queue.items.begin(), queue.items.end(), what); });
  }
  // What is mapped at an address now; ~0 for nothing. Asked when an item runs.
  std::function<std::uint64_t(std::uintptr_t)> mapped = [](std::uintptr_t) { return ~std::uint64_t{0}; };

  std::size_t orders = 0;  // asked for
  void complain(std::string what) { complaints_.push_back(std::move(what)); }
  const std::vector<std::string>& complaints() const { return complaints_; }

 private:
  struct Queue {
    std::deque<Item> items;
    std::uint64_t asked = 0, done = 0;
    std::vector<Point> after;  // of the next item
    bool ended = false;
  };

  // Does the next item of a lane, if what it comes after is done.
  bool go_on(Queue& queue) {
    if (queue.items.empty()) return false;
    const auto& after = queue.items.front().after;
    if (!std::all_of(after.begin(), after.end(), [&](const Point& point) { return passed(point); })) return false;
    const Item item = std::move(queue.items.front());
    queue.items.pop_front();
    const bool in_place = std::all_of(item.uses.begin(), item.uses.end(),
                                      [&](const auto& use) { return mapped(use.first) == use.second; });
    if (in_place) {
      item.body();
    } else {
      complain("an address leads elsewhere when a kernel runs");
    }
    ++queue.done;
    return true;
  }

  // Does one item of some lane that can go on. Lanes are favoured by turns: now one of them is far behind and now another.
  bool step() {
    if (lanes_.empty()) return false;
    if (random_() % 64 == 0) favoured_ = random_() % lanes_.size();
    const std::size_t first = random_() % 4 != 0 ? favoured_ : random_() % lanes_.size();
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      if (go_on(lanes_[(first + i) % lanes_.size()])) return true;
    }
    return false;
  }

  std::mt19937 random_;
  std::size_t favoured_ = 0;
  std::vector<Queue> lanes_;
  std::vector<std::string> complaints_;
};

}  // namespace vt
