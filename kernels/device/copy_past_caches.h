// Copying without filling the caches of the threads that compute: neither side is read again soon.
#pragma once

#include "base/types.h"

namespace vt {

// Twice as fast as memcpy here, which first reads what it is about to overwrite. Pre: both sides are aligned to 16 bytes.
void copy_past_caches(char* to, const char* from, Bytes bytes);

}  // namespace vt
