// Chunks in the order in which they came, each found at once.
//
// Covers: a list through an array. Leaves: what the chunks in it have in common (chunk_pool.h).
// Thread-safety: none of its own; the engine's lock guards it.
#pragma once

#include <cstddef>
#include <iterator>
#include <vector>

#include "device/driver.h"

namespace vt {

class ChunkList {
  struct Link {
    ChunkId before = kNone;
    ChunkId after = kNone;
    bool here = false;
  };

 public:
  // From the oldest to the newest.
  class Iterator {
   public:
    using iterator_category = std::forward_iterator_tag;
    using value_type = ChunkId;
    using difference_type = std::ptrdiff_t;
    using pointer = const ChunkId*;
    using reference = ChunkId;

    Iterator() = default;
    Iterator(const ChunkList& list, ChunkId at) : links_(&list.links_), at_(at) {}
    ChunkId operator*() const noexcept { return at_; }
    Iterator& operator++() noexcept {
      at_ = (*links_)[at_].after;
      return *this;
    }
    Iterator operator++(int) noexcept {
      const Iterator before = *this;
      ++*this;
      return before;
    }
    bool operator==(const Iterator& other) const noexcept { return at_ == other.at_; }

   private:
    const std::vector<Link>* links_ = nullptr;
    ChunkId at_ = kNone;
  };

  // No allocation takes place for chunks below `chunks`. Nothing is written: a budget may be millions of them.
  void reserve(std::size_t chunks) { links_.reserve(chunks); }
  bool contains(ChunkId chunk) const noexcept { return chunk < links_.size() && links_[chunk].here; }
  // As the newest. Pre: it is not here.
  void push_back(ChunkId chunk) {
    if (links_.size() <= chunk) links_.resize(chunk + std::size_t{1});
    links_[chunk] = {newest_, kNone, true};
    (newest_ == kNone ? oldest_ : links_[newest_].after) = chunk;
    newest_ = chunk;
    ++size_;
  }
  // Pre: it is here.
  void erase(ChunkId chunk) noexcept {
    const Link link = links_[chunk];
    (link.before == kNone ? oldest_ : links_[link.before].after) = link.after;
    (link.after == kNone ? newest_ : links_[link.after].before) = link.before;
    links_[chunk] = {};
    --size_;
  }
  // Pre: not empty.
  ChunkId oldest() const noexcept { return oldest_; }
  ChunkId newest() const noexcept { return newest_; }

  bool empty() const noexcept { return size_ == 0; }
  std::size_t size() const noexcept { return size_; }
  Iterator begin() const noexcept { return {*this, oldest_}; }
  Iterator end() const noexcept { return {*this, kNone}; }

 private:
  std::vector<Link> links_;  // by chunk
  ChunkId oldest_ = kNone;
  ChunkId newest_ = kNone;
  std::size_t size_ = 0;
};

}  // namespace vt
