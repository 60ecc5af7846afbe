// Private memory whose pages change places: the system calls, with names.
//
// Covers: moving pages, closing what they left. Leaves: what is moved where, and when (driver_host.h).
// Everything is aligned to pages.
#pragma once

#include "device/driver.h"

namespace vt::pages {

constexpr Bytes kHuge = Bytes{2} << 20;  // what the processor maps by one entry

inline void* pointer(Address at) { return reinterpret_cast<void*>(at); }

int protection(Access access);
// Moves the pages behind `from` to `to`, tables and all. `from` stays reserved, as it was open, and empty; what was reserved at
// `to` is replaced, and is as open as `from` was. False with errno.
bool move(Address from, Address to, Bytes bytes);
// Undoes a mprotect. If the kernel refuses (it is out of mappings), data that somebody needs would stay out of
// reach: there is nothing right to go on with.
void open_again(Address at, Bytes bytes, Access access = Access::write);
// Makes `at` a plain reservation again; it then merges with its neighbours into one kernel mapping. False with errno.
bool reserve_again(Address at, Bytes bytes);
// Reserves addresses, `base` aligned, the whole at `raw`. False with errno.
bool reserve_aligned(Bytes bytes, Bytes align, void** raw, Bytes* raw_bytes, Address* base);

}  // namespace vt::pages
