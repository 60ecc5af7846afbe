"""An iteration as a snapshot of torch's allocator, for the viewer people know (pytorch.org/memory_viz).

Covers: each tensor's allocation and release as the events of ``torch.cuda.memory._snapshot()``, with the operator in
the place of a stack.
Leaves: what each tensor is for (``iteration.roles``), a page of our own (``page``).
"""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from ..iteration.roles import ROLES, roles_of
from ..records.model import Trace
from ..records.rows import describe, nominal

__all__ = ["snapshot", "write_snapshot"]

_BASE = 0x7F00_0000_0000  # no address of it is real: each tensor has one of its own


def snapshot(trace: Trace) -> dict[str, Any]:
    """The iteration twice, so that what lives from one into the next is seen to; what lasts is allocated before.

    What dies in an iteration and is born in none, or the other way round, is there anew in each.
    """
    roles, times = roles_of(trace), nominal(trace) * 1e6
    sizes = trace.chunks * trace.chunk_bytes
    ends = np.cumsum(sizes)
    born, died = trace.tensor_born.tolist(), trace.tensor_died.tolist()
    names = [describe(trace, k) for k in range(trace.operations)]
    events: list[tuple[float, int, dict[str, Any]]] = []  # time; releases go before allocations of the same moment

    def event(action: str, t: int, turn: int, row: int, when: float) -> None:
        copy = _BASE + turn * int(ends[-1])
        where = {"name": names[row] if row >= 0 else "before", "filename": ROLES[roles.role[t]], "line": max(row, 0)}
        events.append((when, action == "alloc", {
            "action": action, "addr": copy + int(ends[t] - sizes[t]), "size": int(sizes[t]), "stream": 0,
            "time_us": int(when), "frames": [where],
        }))  # fmt: skip

    length = float(times[-1])
    for t in range(trace.tensors):
        if trace.lasting[t]:
            event("alloc", t, 0, -1, 0.0)
            continue
        for turn in range(2):
            event("alloc", t, turn, born[t], turn * length + times[max(born[t], 0)])
            last = died[t] if died[t] >= 0 else trace.operations - 1
            event("free_completed", t, turn, last, (turn + (last < born[t])) * length + times[last + 1])
    events.sort(key=lambda each: each[:2])
    return {"segments": [], "device_traces": [[each for _, _, each in events]]}


def write_snapshot(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write it as torch's ``_dump_snapshot`` does."""
    Path(path).write_bytes(pickle.dumps(snapshot(trace)))
