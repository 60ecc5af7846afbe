// Reads outside operations on the host device: a touch of memory that is not there brings it.
//
// Covers: the SIGSEGV handler, and passing on faults that are not ours to whoever was there before.
// Leaves: what bringing means (Engine::on_fault). A GPU has no such handler: there the doors in vtensor/hooks/doors.py
// make resident instead.
#pragma once

namespace vt {

// Who is on top now, or next below us, is Python's faulthandler. Disabled it may stay there, and does nothing.
void note_pythons_handler() noexcept;

// Installs the handler, or puts it back on top if somebody (Python's faulthandler, for one) installed theirs
// since. Cheap enough to call on every eviction.
void arm_fault_handler() noexcept;

}  // namespace vt
