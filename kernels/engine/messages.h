// What the engine says to people in the middle of its work. Needs nothing of the engine; any thread.
#pragma once

#include "base/types.h"

namespace vt {

// Once in a process: an operation needs more than the budget at once. `overdrawn`: it gets it, else it uses the host store in
// place.
void warn_oversize(const char* operation, Bytes budget, bool overdrawn);

}  // namespace vt
