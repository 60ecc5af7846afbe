// Which virtual addresses of the engine's window are free: a best-fit allocator over whole chunks.
//
// Covers: handing out and taking back runs of chunk-sized addresses, merging free neighbours.
// Leaves: what is mapped there (engine). Addresses are plentiful; memory is not spent here.
// Thread-safety: none of its own; the engine's lock guards it.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "base/types.h"

namespace vt {

class AddressSpace {
 public:
  // `chunks` chunk-sized addresses from `base`.
  AddressSpace(Address base, std::size_t chunks, Bytes chunk_bytes);

  // The smallest free run that fits, lowest address first; 0 if there is none.
  Address acquire(std::size_t chunks);
  // Pre: exactly what an acquire gave, once.
  void release(Address at, std::size_t chunks);

  std::size_t free_chunks() const noexcept { return free_chunks_; }
  std::size_t runs() const noexcept { return by_start_.size(); }
  std::string validate() const;

 private:
  void insert(std::size_t start, std::size_t length);
  void erase(std::map<std::size_t, std::size_t>::iterator run);

  const Address base_;
  const std::size_t chunks_;
  const Bytes chunk_bytes_;
  std::size_t free_chunks_ = 0;
  std::map<std::size_t, std::size_t> by_start_;                    // start -> length, both in chunks
  std::set<std::pair<std::size_t, std::size_t>> by_length_;        // (length, start)
};

}  // namespace vt
