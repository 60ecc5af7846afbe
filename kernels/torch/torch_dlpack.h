// The table by which libraries take tensors from C to C (DLPack's exchange interface): tvm-ffi and what is built on it.
//
// Covers: a table that is torch's, but tells of each address it gives away. Leaves: what that means (Engine::export_address).
#pragma once

namespace vt {

// False if the address must not be given away: then the call fails, as if torch had refused.
using Told = bool (*)(const void* address);

// `torchs` is what the capsule of torch.Tensor.__dlpack_c_exchange_api__ holds; what is returned goes into one like it, and lives
// as long as the process. Both are asked for with Python's lock held, and so is `told`. One table for all calls.
void* telling_table(void* torchs, Told told);

}  // namespace vt
