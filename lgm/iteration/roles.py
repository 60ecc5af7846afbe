"""What the tensors of an iteration are for, told from when they live and who uses them.

Covers: weights, gradients, optimizer states, activations and their gradients; where forward, backward and the
optimizer's step begin.
Leaves: bytes over time (``lifetimes``), drawing them (``reports.page``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..records.model import Ints, Trace
from .lifetimes import cover, lifespans

__all__ = ["ROLES", "Roles", "phases", "roles_of"]

# Of the bytes that an iteration updates: so much may be written before the optimizer's step, such as a buffer.
_EARLY = 0.05

ROLES = ("weights", "optimizer states", "gradients", "activations", "gradients of activations", "other")


@dataclass(frozen=True, slots=True)
class Roles:
    """Of one trace."""

    role: Ints
    """[m] Of each tensor, a place in `ROLES`."""
    backward: int
    """The row with which the backward pass begins; the number of rows if there is none."""
    step: int
    """The row after the last of the backward pass, with which the optimizer's step begins."""

    def bytes_over_time(self, trace: Trace) -> Ints:
        """[roles, n] Bytes in chunks alive at each row, by role."""
        n, size = trace.operations, trace.chunks * trace.chunk_bytes
        begin, end = lifespans(trace)
        return np.stack(
            [cover(n, begin[mine], end[mine], size[mine]) for mine in self.role == np.arange(len(ROLES))[:, None]]
        )


def phases(trace: Trace) -> tuple[int, int]:
    """The first row of the backward pass, and the one after its last; the number of rows twice if there is none."""
    rows = np.flatnonzero(np.array(["_backward" in name for name in trace.names], dtype=bool)[trace.op_name])
    return (int(rows[0]), int(rows[-1]) + 1) if len(rows) else _unnamed_phases(trace)


def _unnamed_phases(trace: Trace) -> tuple[int, int]:
    """The same where no operation's name tells (the backward pass of a matrix product is two of them).

    An optimizer writes what the iteration read before, which is most of what lasts and is read; without one there is no
    backward pass. Of what is made and done with before that step, most is still to be used when the backward pass
    begins.
    """
    n, m = trace.operations, trace.tensors
    first, last, written = np.full(m, n), np.full(m, -1), np.full(m, n)
    writes = trace.use_write > 0
    np.minimum.at(first, trace.use_tensor, trace.use_op)
    np.maximum.at(last, trace.use_tensor, trace.use_op)
    np.minimum.at(written, trace.use_tensor[writes], trace.use_op[writes])
    born, size = trace.tensor_born, trace.chunks * trace.chunk_bytes
    read = trace.lasting & (first < written)  # not what is only filled anew, as gradients that are zeroed
    updated = read & (written < n)
    if 2 * int(size[updated].sum()) < int(size[read].sum()) or not updated.any():
        return n, n  # a cache, or a statistic
    order = np.flatnonzero(updated)[np.argsort(written[updated], kind="stable")]
    begun = np.cumsum(size[order]) > _EARLY * size[order].sum()
    step = int(written[order][np.argmax(begun)])
    saved = (born >= 0) & (last > born) & (last < step)
    if not saved.any():
        return n, n
    waiting = cover(n, born[saved] + 1, last[saved] + 1, size[saved])
    return int(np.flatnonzero(waiting == waiting.max())[-1]), step


def roles_of(trace: Trace) -> Roles:
    """By the first and last use of each tensor; of a trace without a backward pass all that lasts is weights."""
    n, m = trace.operations, trace.tensors
    backward, step = phases(trace)
    first, last = np.full(m, n), np.full(m, -1)
    np.minimum.at(first, trace.use_tensor, trace.use_op)
    np.maximum.at(last, trace.use_tensor, trace.use_op)
    born, lasts = trace.tensor_born, trace.lasting
    role = np.full(m, ROLES.index("other"))
    role[(born >= 0) & (born < backward) & (last >= backward)] = ROLES.index("activations")
    role[(born >= backward) & (born < step)] = ROLES.index("gradients of activations")
    role[(lasts | (born >= backward)) & (first >= min(backward, n - 1)) & (last >= step)] = ROLES.index("gradients")
    role[lasts & (first >= step)] = ROLES.index("optimizer states")
    role[lasts & ((first < backward) | (last < 0))] = ROLES.index("weights")  # also those that nobody uses
    role[(born >= step) & (born < n)] = ROLES.index("other")
    return Roles(role, backward, step)
