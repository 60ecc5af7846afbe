// Which tensor an address belongs to: the window of addresses, a table with an entry for each chunk of it, and the records.
//
// Covers: making ranges and giving them back, finding the one around an address.
// Leaves: what is behind the addresses (mappings.h), the lives of tensors (roster.h), what becomes of freed ones (freed.h).
// Requires: the lock, but for contains() and find(): whoever asks them keeps the range alive, as it holds the tensor.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/ground.h"
#include "memory/address_space.h"

namespace vt {

class RangeTable {
 public:
  // Throws InvalidUse if the addresses cannot be had.
  explicit RangeTable(Ground& ground);
  ~RangeTable();
  RangeTable(const RangeTable&) = delete;
  RangeTable& operator=(const RangeTable&) = delete;

  bool contains(const void* address) const noexcept {
    return reinterpret_cast<Address>(address) - base_ < window_bytes_.load(std::memory_order_relaxed);
  }
  // The range around `address`, or nullptr.
  Range* find(const void* address) const noexcept {
    const Address offset = reinterpret_cast<Address>(address) - base_;
    if (offset >= window_bytes_.load(std::memory_order_relaxed)) return nullptr;
    return table_[offset >> ground_.shift].load(std::memory_order_relaxed);
  }
  // The live tensor around `address`, or nullptr.
  Range* find_live(const void* address) const noexcept {
    Range* range = find(address);
    return range != nullptr && range->life == Life::live ? range : nullptr;
  }

  // Addresses and a record; nullptr if no addresses are left.
  Range* make(std::uint32_t chunks);
  // Both are free again. Pre: nothing leads from the addresses anywhere, and nothing counts the range as pinned.
  void retire(Range& range);
  // Whether find() finds it.
  void show(Range& range) { fill(range, &range); }
  void hide(Range& range) { fill(range, nullptr); }

  Bytes window() const noexcept { return ground_.bytes_of(entries_); }
  // Every record ever made, also of ranges that are no tensor now.
  std::span<const std::unique_ptr<Range>> records() const noexcept { return records_; }
  // Live tensors, oldest first.
  std::vector<Range*> living() const;
  // Does `step(range, index)` for each vTensor of a live tensor that is in this state. It may change the state.
  template <typename Step>
  void each_live_part(State state, Step step) const {
    for (const auto& range : records_) {
      for (std::uint32_t i = 0; range->life == Life::live && i < range->chunks; ++i) {
        if (range->parts[i].state == state) step(*range, i);
      }
    }
  }
  // Gives all addresses back. Pre: no tensor is live, nothing is mapped.
  Status close();
  // Empty, or what is broken. `whole`: no other thread is making a range now.
  std::string validate(bool whole) const;

 private:
  void fill(const Range& range, Range* entry);

  Ground& ground_;
  Address base_ = 0;
  std::atomic<Bytes> window_bytes_{0};
  std::size_t entries_;                          // one for each chunk of the window
  std::atomic<Range*>* table_ = nullptr;
  std::unique_ptr<AddressSpace> space_;
  std::vector<std::unique_ptr<Range>> records_;  // never freed: a late unpin always finds memory
  std::vector<Range*> unused_;
};

}  // namespace vt
