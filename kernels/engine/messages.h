// What the engine says to people in the middle of its work. Needs nothing of the engine; any thread.
#pragma once

#include <string>

#include "base/types.h"

namespace vt {

struct Shortage {
  Bytes used;     // by the operation, in chunks
  Bytes lacking;  // of that
  Bytes budget;
  bool host_full = false;  // what could leave had no place there
  bool overdrawn = false;  // it gets it all the same; else it uses the host store in place
  bool copies = true;      // what leaves may be copied
};
// Once in a process: the budget cannot free at once what an operation needs.
void warn_oversize(const char* operation, const Shortage& shortage);
// Once in a process: an operation that cannot be stopped any more needs a slot, and the host store is full.
void warn_host_full(Bytes capacity);
// Once in a process: what an operation that cannot be stopped any more needs can be mapped nowhere.
void warn_unmapped(const char* operation, const Status& status);
// Why there is no chunk, where what leaves is copied, or may only be dropped.
std::string why_no_chunk(const Status& status, bool copies);

}  // namespace vt
