"""The forward pass of an iteration as a chain of layers, read off a trace with no help from who wrote the model.

Covers: the chain, blocks of it, at which block backward is when.
Leaves: what is recomputed (``segments``), phases of an iteration (``iteration.roles``).

A layer of the chain is a call of the forward pass. A checkpoint before a call keeps what the rest of the forward pass
still reads. Where few bytes are alive across, blocks end: such calls are what the dynamic program picks.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from ..errors import LgmError
from ..iteration.roles import phases
from ..records.model import Floats, Ints, Trace

__all__ = ["Chain", "backward_at", "born_in", "even_blocks", "find_chain"]


@dataclass(frozen=True, slots=True)
class Chain:
    """n layers; layer k are the operations from `rows[k]` on, to the next one's or to `end`."""

    rows: Ints
    end: int
    """The operation with which backward begins."""
    leaves: Floats
    """[n] Bytes that each layer leaves behind for backward."""
    across: Floats
    """[n] Bytes a checkpoint at the end of each layer keeps."""
    waits: Ints
    """Tensors that layers leave behind."""
    stop: int
    """The operation after the last one that goes backward."""


def find_chain(trace: Trace) -> Chain:
    """The forward pass as a chain.

    Raises
    ------
    LgmError
        If the trace knows no calls, or no forward pass: nothing whose name says it goes backward; if none of the calls
        is in it.
    """
    if not len(trace.call_first):
        raise LgmError("this trace does not say what can be run again; record it anew")
    end, stop = phases(trace)
    if not 0 < end < trace.operations:
        raise LgmError("this trace has no forward and backward pass")
    rows = np.unique(trace.call_first[trace.call_first < end])
    if not len(rows):
        raise LgmError("nothing of this trace's forward pass can be run again")
    layer = np.searchsorted(rows, np.arange(end), side="right") - 1
    born, size = trace.tensor_born, trace.chunks * trace.chunk_bytes
    early, late = trace.use_op < end, trace.use_op >= end
    last_forward = np.full(trace.tensors, -1)
    np.maximum.at(last_forward, trace.use_tensor[early], trace.use_op[early])
    for_backward = np.zeros(trace.tensors, dtype=bool)
    for_backward[trace.use_tensor[late]] = True
    made = np.flatnonzero((born >= rows[0]) & (born < end) & ~((trace.tensor_died >= 0) & (trace.tensor_died < born)))
    leaves, across = np.zeros((2, len(rows)))
    left = made[for_backward[made]]
    np.add.at(leaves, layer[born[left]], size[left])
    for t in made[last_forward[made] > born[made]].tolist():
        across[layer[born[t]] : layer[last_forward[t]]] += size[t]
    return Chain(rows, end, leaves, across, left, stop)


def even_blocks(chain: Chain, most: int) -> Ints:
    """First layers of at most so many runs of layers that leave about as much behind, cut where least is alive."""
    left = np.concatenate([[0.0], np.cumsum(chain.leaves)])
    if left[-1] <= 0:
        raise LgmError("the forward pass leaves nothing behind for backward")
    parts = np.unique(np.searchsorted(left, np.linspace(0, left[-1], most + 1)[:-1], side="right") - 1)
    cuts = [
        a + 1 + int(np.argmin(chain.across[a:b])) for a, b in itertools.pairwise([*parts.tolist(), len(chain.rows)])
    ]
    return np.unique([0, *cuts[:-1]])


def born_in(trace: Trace, chain: Chain, blocks: Ints) -> Ints:
    """[m] The block in which each tensor is born; as many as there are blocks for all others."""
    block = np.searchsorted(chain.rows[blocks], trace.tensor_born, side="right") - 1
    return np.where((block < 0) | (trace.tensor_born >= chain.end), len(blocks), block)


def backward_at(trace: Trace, chain: Chain, blocks: Ints) -> Ints:
    """[operations from backward on] The block it is at: the first one of which something was read."""
    read = np.full(trace.operations, len(blocks) - 1)
    np.minimum.at(read, trace.use_op, born_in(trace, chain, blocks)[trace.use_tensor])
    return np.asarray(np.minimum.accumulate(read[chain.end :]), dtype=np.int64)
