"""From the core's log of one iteration to a trace that :mod:`lgm` understands.

Covers: tensors that live from one iteration into the next, durations, where a trace comes from.
Leaves: recording (``kernels/iteration/recorder.h``) and the file format (``lgm.records``).
"""

from __future__ import annotations

import datetime
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lgm.records.model import Ints, Trace

from ..native.core import RawIteration

__all__ = ["Recording", "make_recording"]


@dataclass(frozen=True, slots=True)
class Recording:
    """A trace, and what ties its m tensors to those of this process."""

    trace: Trace
    births: Ints
    """Tensors in order of allocation."""
    previous: Ints
    """[m] Which allocation of the iteration before it is when an iteration begins; -1 for none."""
    serial: Ints
    """[m] The core's number of a tensor that lasts; 0 for others."""
    lasting: Ints
    """[m] 1 if it was there before and no iteration makes it."""
    followed: bool
    """It followed a plan: operations took as long as they do with one."""


def where_from() -> dict[str, Any]:
    """Versions and machine, for the provenance of a file."""
    import torch

    return {
        "torch": str(torch.__version__),  # a plain one: who reads it needs no torch
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "script": Path(sys.argv[0]).name if sys.argv else "",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def make_recording(raw: RawIteration, chunk_bytes: int, meta: dict[str, Any] | None = None) -> Recording:
    """Make sense of what ``recorded_iteration()`` of the core returned.

    A tensor that is there at the beginning, was made by allocation j of the iteration before and dies in this one, is
    the same, one turn earlier, as the one that allocation j of this iteration makes: the two become one tensor that
    reaches over the turn. (Unless the new one is made before the old one dies; then both remain.)
    """
    born, died, previous = raw["tensor_born"], raw["tensor_died"].copy(), raw["tensor_previous"]
    size, births = raw["tensor_bytes"], raw["births"]
    target = np.arange(len(size))
    old = np.flatnonzero((previous >= 0) & (previous < len(births)) & (died >= 0))
    new = births[previous[old]]
    same = (size[old] == size[new]) & (died[new] < 0) & (died[old] < born[new])
    old, new = old[same], new[same]
    died[new] = died[old]
    target[old] = new
    before = np.full(len(size), -1, dtype=np.int64)
    before[:] = previous
    before[new] = previous[old]
    kept = np.flatnonzero(target == np.arange(len(size)))
    number = np.full(len(size), -1, dtype=np.int64)
    number[kept] = np.arange(len(kept))
    number = number[target]
    edges = np.append(raw["op_begin"], raw["end"])
    trace = Trace(
        chunk_bytes=chunk_bytes,
        names=tuple(raw["names"]),
        op_name=raw["op_name"],
        op_ns=np.maximum(np.diff(edges), 0),
        op_last=raw["op_last"],
        tensor_bytes=size[kept],
        tensor_born=born[kept],
        tensor_died=died[kept],
        use_op=raw["use_op"],
        use_tensor=number[raw["use_tensor"]],
        use_first=raw["use_first"],
        use_last=raw["use_last"],
        use_write=raw["use_write"],
        meta=where_from() | (meta or {}),
        call_first=raw["call_first"],
        call_last=raw["call_last"],
        call_again=raw["call_again"],
    )
    lasting = ((born < 0) & ((previous < 0) | (died < 0)))[kept].astype(np.int64)
    return Recording(
        trace,
        births=number[births],
        previous=np.where(lasting == 1, -1, before[kept]),
        serial=raw["tensor_serial"][kept] * lasting,
        lasting=lasting,
        followed=raw["followed"],
    )
