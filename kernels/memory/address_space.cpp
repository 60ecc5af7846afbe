#include "memory/address_space.h"

namespace vt {

AddressSpace::AddressSpace(Address base, std::size_t chunks, Bytes chunk_bytes)
    : base_(base), chunks_(chunks), chunk_bytes_(chunk_bytes) {
  insert(0, chunks);
}

Address AddressSpace::acquire(std::size_t chunks) {
  const auto fit = by_length_.lower_bound({chunks, 0});
  if (chunks == 0 || fit == by_length_.end()) return 0;
  const auto [length, start] = *fit;
  erase(by_start_.find(start));
  if (length > chunks) insert(start + chunks, length - chunks);
  return base_ + start * chunk_bytes_;
}

void AddressSpace::release(Address at, std::size_t chunks) {
  std::size_t start = (at - base_) / chunk_bytes_;
  std::size_t length = chunks;
  auto after = by_start_.upper_bound(start);
  if (after != by_start_.end() && after->first < start + length) fatal("addresses were given back twice");
  if (after != by_start_.end() && after->first == start + length) {
    length += after->second;
    erase(after);
  }
  after = by_start_.upper_bound(start);
  if (after != by_start_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second > start) fatal("addresses were given back twice");
    if (before->first + before->second == start) {
      start = before->first;
      length += before->second;
      erase(before);
    }
  }
  insert(start, length);
}

void AddressSpace::insert(std::size_t start, std::size_t length) {
  by_start_.emplace(start, length);
  by_length_.emplace(length, start);
  free_chunks_ += length;
}

void AddressSpace::erase(std::map<std::size_t, std::size_t>::iterator run) {
  by_length_.erase({run->second, run->first});
  free_chunks_ -= run->second;
  by_start_.erase(run);
}

std::string AddressSpace::validate() const {
  std::size_t end = 0, total = 0;
  bool first = true;
  for (const auto& [start, length] : by_start_) {
    if (length == 0) return "an empty run is listed";
    if (!first && start <= end) return "free runs overlap or touch without being merged";
    if (!by_length_.contains({length, start})) return "a run is not listed by its length";
    end = start + length;
    total += length;
    first = false;
  }
  if (end > chunks_) return "a run lies outside the window";
  if (total != free_chunks_ || by_length_.size() != by_start_.size()) return "the free count is wrong";
  return "";
}

}  // namespace vt
