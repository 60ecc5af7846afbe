"""Copies in for a policy that decides by itself what leaves: begun before what they bring is used.

Covers: when each begins, in iterations that go on like the recorded one.
Leaves: what leaves, and when (the engine's reactive policy), and room: an arrival waits for a chunk that becomes free,
and one whose tensor is there is passed over. Plans of both, leaves and arrivals: ``planning.planner``.
"""

from __future__ import annotations

import numpy as np

from ..records.copies import Copies
from ..records.model import Device, Ints, Trace
from ..records.rows import nominal

__all__ = ["prefetch"]


def prefetch(trace: Trace, away: Ints, device: Device) -> Copies:
    """Bring what was missed, each as late as the lane allows (arXiv 2203.15980, section 4, has a fixed number of copies
    under way instead; its successor, doi 10.1145/3689338, prefetches by an offline solution).

    Parameters
    ----------
    away
        [u] Chunks that each use of `trace` found away.
    device
        Its speed of copies in.

    Notes
    -----
    Filled from the last use backwards: a copy ends when its tensor is used, or when the next copy must begin. It does
    not begin before the tensor's use before that: until then it has not left.
    """
    begin = nominal(trace)
    away, chunks = np.flatnonzero(away), away[away > 0]
    before = _uses_before(trace)[away]
    lane = np.inf
    rows = np.zeros(len(away), dtype=np.int64)
    size = chunks * trace.chunk_bytes / device.in_speed
    for k in reversed(range(len(away))):
        use = int(trace.use_op[away[k]])
        lane = min(lane, float(begin[use])) - float(size[k])
        row = int(np.searchsorted(begin, lane, side="right")) - 1
        rows[k] = min(max(row, int(before[k]) + 1, 0), use)
    order = np.argsort(rows, kind="stable")
    which = away[order]
    return Copies(rows[order], trace.use_tensor[which], trace.use_first[which], trace.use_last[which])


def _uses_before(trace: Trace) -> Ints:
    """[u] The operation of the same tensor's use before each, or that which made it; -1 for none in the iteration."""
    order = np.lexsort((trace.use_op, trace.use_tensor))
    tensor, op = trace.use_tensor[order], trace.use_op[order]
    before = np.empty(len(order), dtype=np.int64)
    follows = np.concatenate([[False], tensor[1:] == tensor[:-1]])[: len(order)]
    born = trace.tensor_born[tensor]
    made = np.where(born < op, born, -1)  # what reaches over the turn is used before it is made anew
    before[order] = np.where(follows, np.concatenate([[0], op[:-1]])[: len(order)], made)
    return before
