// The file that a host store is, reached by its number.
//
// A program may close descriptors it did not open, as daemons close all, and its next file gets the number: reading that would be
// wrong, writing it would destroy it. So each use asks first whether it is the same file still. (Who made it keeps its inode from
// being another's.)
//
// Covers: that question. Leaves: the file (store/file_store.cpp), copies (host_lane.cpp).
#pragma once

#include "device/driver.h"

namespace vt {

// A place at the beginning of the file that is open under this number.
HostPlace place_in(int file) noexcept;
// False, with errno, if the number is closed, or another file's.
bool still_there(const HostPlace& place) noexcept;

}  // namespace vt
