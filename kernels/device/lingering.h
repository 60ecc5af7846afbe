// Chunks that were unmapped where nobody reads any more, and whose pages, content and all, still lie there: what is used
// elsewhere next need not go home first, which is most of what a training step allocates under pressure.
//
// Covers: which, and sending them home where the address is needed, or the chunk at rest.
// Leaves: moving one on (driver_host.h). Requires: the driver's mutex.
#pragma once

#include <map>
#include <unordered_map>

#include "device/driver.h"

namespace vt {

class Lingering {
 public:
  explicit Lingering(Bytes chunk_bytes) : chunk_bytes_(chunk_bytes) {}

  void add(ChunkId chunk, Address at, Address home);
  // Where it lingers; 0 if it does not.
  Address at(ChunkId chunk) const;
  // It was moved on.
  void forget(ChunkId chunk);
  // It is at home then, if it lingered. False with errno if the kernel refuses; then it stays.
  bool send_home(ChunkId chunk);
  // The same of all in [base, base + bytes).
  bool clear(Address base, Bytes bytes);

 private:
  struct One {
    Address at, home;
  };

  const Bytes chunk_bytes_;
  std::unordered_map<ChunkId, One> chunks_;
  std::map<Address, ChunkId> by_address_;
};

}  // namespace vt
