#include "device/pages.h"

#include <linux/mman.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace vt::pages {

int protection(Access access) {
  switch (access) {
    case Access::none: return PROT_NONE;
    case Access::read: return PROT_READ;
    case Access::write: return PROT_READ | PROT_WRITE;
  }
  return PROT_NONE;
}

bool move(Address from, Address to, Bytes bytes) {
  // DONTUNMAP: no other thread's mmap can slip into the hole.
  return mremap(pointer(from), bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, pointer(to)) !=
         MAP_FAILED;
}

void open_again(Address at, Bytes bytes, Access access) {
  if (mprotect(pointer(at), bytes, protection(access)) != 0) {
    fatal(std::string("mprotect: ") + std::strerror(errno) + "; vm.max_map_count may be too low for this chunk size");
  }
}

bool reserve_again(Address at, Bytes bytes) {
  return mmap(pointer(at), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) !=
         MAP_FAILED;
}

bool reserve_aligned(Bytes bytes, Bytes align, void** raw, Bytes* raw_bytes, Address* base) {
  *raw_bytes = bytes + align;
  *raw = mmap(nullptr, *raw_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (*raw == MAP_FAILED) return false;
  *base = (reinterpret_cast<Address>(*raw) + align - 1) / align * align;
  return true;
}

}  // namespace vt::pages
