// Moving tensors that live equally long side by side, into one allocation: a shelf.
//
// A tensor of its own begins at a chunk, and the rest of its last chunk is padding: of a weight of 2.25 MiB nearly half. On a
// shelf only the last tensor pads. A tensor keeps its storage, whose memory is another's part from then on; whoever shares the
// storage follows.
//
// Covers: which tensors may be moved at all, and moving them.
// Leaves: which ones should be (vtensor/session/shelves.py), the end of a shelf (iteration/managed.h).
// Requires: the caller keeps the tensors alive.
#pragma once

#include <c10/core/TensorImpl.h>

#include <cstdint>
#include <span>

namespace vt {

// Where tensors begin on a shelf, as in torch's own allocators.
inline constexpr std::size_t kShelfAlign = 512;

// Whether it has managed memory of its own, which is all of its storage, and nobody else can know where that is: no other tensor
// has the storage, its address was never given away, no operation uses it, and it is on no shelf. False while more than one
// thread works with managed memory: another may be about to.
bool may_move(const c10::TensorImpl& tensor);

// Whose the memory of a tensor is: an allocator's, which gave it to its storage; that of whoever lent it to torch (NumPy, a
// buffer, another library), and may look at it; or something else, such as a file's content.
enum class Whose : std::uint8_t { allocator, lender, other };
Whose whose_memory(const c10::TensorImpl& tensor);

// Whoever has the storage of the one has the memory of the other from then on. Pre: as many bytes in both.
void swap_memory(const c10::TensorImpl& one, const c10::TensorImpl& other);

// Moves those that may be moved, which are on one device, in this order. Throws what torch does if there is no memory; each
// tensor has all of its content then, here or there.
void put_on_shelf(std::span<c10::TensorImpl* const> tensors);

}  // namespace vt
