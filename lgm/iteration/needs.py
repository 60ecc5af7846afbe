"""What an iteration needs at once, whatever leaves: no budget is below that.

Covers: the smallest budget, and what is said of one that is smaller.
Leaves: doing with less all the same (``planning.oversize``).
"""

from __future__ import annotations

import numpy as np

from ..errors import InfeasibleError
from ..records.model import Device, Trace
from ..records.rows import describe
from ..records.units import format_bytes
from .lifetimes import Lifetimes

__all__ = ["check_feasible", "smallest_budget"]


def smallest_budget(trace: Trace, life: Lifetimes) -> int:
    """Bytes the most demanding operation needs at once."""
    return int(life.needed.max()) * trace.chunk_bytes


def check_feasible(trace: Trace, device: Device, life: Lifetimes) -> None:
    """Raise InfeasibleError, naming the operation, if one needs more than the budget."""
    worst = int(np.argmax(life.needed))
    if life.needed[worst] <= device.budget_chunks:
        return
    needed, budget = smallest_budget(trace, life), device.budget_chunks * trace.chunk_bytes
    name = describe(trace, worst)
    raise InfeasibleError(
        name,
        needed,
        budget,
        f"a budget of {format_bytes(budget)} is too small: {name} needs {format_bytes(needed)} at once. "
        f"The smallest budget that works is {format_bytes(needed)}; with less, the run borrows host memory for it",
    )
