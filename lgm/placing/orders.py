"""A plan as it is handed to who follows it: in the tensors and rows of the iteration as it was recorded.

A plan that makes things again speaks of an iteration that is rewritten, in which what is dropped and what is made in
its place are two tensors. Who follows it knows one, which is away meanwhile.

Covers: what a plan has done at which operation, where each piece is to sit, and what is away when an iteration begins.
Leaves: where pieces sit (``seats``), when copies are asked for (``asking``), handing it over
(``vtensor/planning/plans.py``), following it (``kernels/iteration/plan_runner.h``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..records.copies import Copies
from ..records.model import Ints, Plan
from .mapping import away_at_turn
from .seats import seats

__all__ = ["Orders", "arrivals_alone", "orders"]

_NONE = np.zeros(0, dtype=np.int64)
_NO_MOVES = Copies(_NONE, _NONE, _NONE, _NONE)


@dataclass(frozen=True, slots=True)
class Orders:
    """What is to be done in an iteration of n recorded operations and m recorded tensors."""

    departures: Copies
    """What leaves for the host. Operations here and in the other moves count what is recomputed, too."""
    arrivals: Copies
    drops: Copies
    """What leaves without a copy; all of each tensor."""
    makes: Copies
    """What is recomputed."""
    at: Ints
    """[n] Which operation each recorded one is, where things are recomputed; else empty."""
    sees: Ints
    """[n] Whether the recorded operation is one that will be run again, and so is kept in mind; else empty."""
    away: Ints
    """[k, 3] (tensor, first, last): chunks that are away when an iteration begins."""
    keep: Ints
    """[m] Whether addresses of a tensor go on leading to its chunks while it is away."""
    seat_first: Ints
    """[m + 1] Where the seats of each tensor begin; empty without seats."""
    seat_chunk: Ints


def orders(plan: Plan, seated: int | None) -> Orders:
    """What a plan means for who follows it.

    Parameters
    ----------
    seated
        Chunks there are, on a device where leading an address to another chunk costs more than a kernel: each vTensor
        is to have one of its own. None elsewhere.
    """
    again, trace = plan.remaking, plan.recorded
    of = np.arange(plan.trace.tensors) if again is None else again.tensor
    away = np.array(away_at_turn(plan), dtype=np.int64).reshape(-1, 3)
    away[:, 0] = of[away[:, 0]]
    keep = np.zeros(trace.tensors, dtype=np.int64)
    keep[of[of >= 0]] = plan.keep[of >= 0]  # as the last of what a tensor is
    departures = Copies(plan.out_op, plan.out_tensor, plan.out_first, plan.out_last)
    arrivals = Copies(plan.in_op, plan.in_tensor, plan.in_first, plan.in_last)
    seat_first = seat_chunk = _NONE
    if seated is not None:
        given = seats(plan, seated)
        if (given.chunk >= 0).any():
            seat_first, seat_chunk = given.first, given.chunk
            departures, arrivals = given.departures, given.arrivals
            keep[:] = 0  # addresses lead to their chunks without keeping those from others
    return Orders(
        replace(departures, tensor=of[departures.tensor]),
        replace(arrivals, tensor=of[arrivals.tensor]),
        _NO_MOVES if again is None else _whole(plan, again.drop_op, again.drop_tensor),
        _NO_MOVES if again is None else _whole(plan, again.make_op, again.make_tensor),
        _NONE if again is None else again.at,
        _NONE if again is None else again.sees,
        away,
        keep,
        seat_first,
        seat_chunk,
    )


def arrivals_alone(arrivals: Copies, tensors: int) -> Orders:
    """Where a policy says what leaves; of an iteration of so many tensors."""
    keep = np.ones(tensors, dtype=np.int64)
    return Orders(
        _NO_MOVES, arrivals, _NO_MOVES, _NO_MOVES, _NONE, _NONE, np.zeros((0, 3), dtype=np.int64), keep, _NONE, _NONE
    )


def _whole(plan: Plan, op: Ints, tensor: Ints) -> Copies:
    return Copies(op, tensor, np.zeros_like(tensor), plan.recorded.chunks[tensor])
