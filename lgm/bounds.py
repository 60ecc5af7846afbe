"""What no plan can beat.

Covers: the least step time for given traffic, the smallest budget a trace can run in.
Leaves: how near a plan comes (``simulate``).
"""

from __future__ import annotations

import numpy as np

from .lifetimes import Lifetimes
from .model import Device, InfeasibleError, Trace
from .schedule import Moves
from .units import format_bytes

__all__ = ["check_feasible", "least_seconds", "smallest_budget"]


def least_seconds(trace: Trace, device: Device, moves: Moves) -> float:
    """max(computing, bytes out / speed, bytes in / speed): the three run side by side at best."""
    out = float(moves.out_bytes.sum()) / device.out_speed
    back = float(moves.in_bytes.sum()) / device.in_speed
    return max(trace.seconds, out, back)


def smallest_budget(trace: Trace, life: Lifetimes) -> int:
    """Bytes the most demanding operation needs at once."""
    return int(life.needed.max()) * trace.chunk_bytes


def check_feasible(trace: Trace, device: Device, life: Lifetimes) -> None:
    """Raise InfeasibleError, naming the operation, if one needs more than the budget."""
    worst = int(np.argmax(life.needed))
    if life.needed[worst] <= device.budget_chunks:
        return
    needed, budget = smallest_budget(trace, life), device.budget_chunks * trace.chunk_bytes
    name = trace.describe(worst)
    raise InfeasibleError(
        name,
        needed,
        budget,
        f"a budget of {format_bytes(budget)} is too small: {name} needs {format_bytes(needed)} at once. "
        f"The smallest budget that works is {format_bytes(needed)}; with less, the run borrows host memory for it",
    )
