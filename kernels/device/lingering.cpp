#include "device/lingering.h"

#include "device/pages.h"

namespace vt {

void Lingering::add(ChunkId chunk, Address at, Address home) {
  chunks_.emplace(chunk, One{at, home});
  by_address_.emplace(at, chunk);
}

Address Lingering::at(ChunkId chunk) const {
  const auto found = chunks_.find(chunk);
  return found == chunks_.end() ? 0 : found->second.at;
}

void Lingering::forget(ChunkId chunk) {
  const auto found = chunks_.find(chunk);
  by_address_.erase(found->second.at);
  chunks_.erase(found);
}

bool Lingering::send_home(ChunkId chunk) {
  const auto found = chunks_.find(chunk);
  if (found == chunks_.end()) return true;
  const One one = found->second;
  if (!pages::move(one.at, one.home, chunk_bytes_)) return false;
  pages::reserve_again(one.at, chunk_bytes_);  // where it fails it is open, and nobody's
  forget(chunk);
  return true;
}

bool Lingering::clear(Address base, Bytes bytes) {
  for (;;) {
    const auto first = by_address_.lower_bound(base);
    if (first == by_address_.end() || first->first >= base + bytes) return true;
    if (!send_home(first->second)) return false;
  }
}

}  // namespace vt
