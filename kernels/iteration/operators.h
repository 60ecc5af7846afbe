// Operators by name: a trace holds names, the runner compares ids.
//
// Covers: the table of both. Leaves: what torch calls them (torch_traits.h).
// Thread-safety: every call may come from any thread. The lock is a leaf.
#pragma once

#include <string>

#include "iteration/recorder.h"

namespace vt {

OpId operator_id(const std::string& name);
std::string operator_name(OpId id);  // "?" of one that never was

// Around fork(): nobody is inside.
void hold_operators();
void let_operators_go();

}  // namespace vt
