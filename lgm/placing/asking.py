"""With which operation each copy of a plan is asked for, on a device that does later what it is asked for now.

A plan says from when on a copy may begin, and it begins once its lane is free. The host is ahead of the device, so:

- A copy in that is asked for as early as it may begin would take the chunk before whoever sits there is gone. Each
  chunk is asked for with the operation during which its copy begins: the seat is free by then, and the device does the
  same at the same time.
- A copy out that is asked for as early would stand in its stream behind all those before it. A stream has room for so
  many things that are still to be done; who asks for one more stands until one is, and the device runs out of things to
  compute. On a modelled H100 whose streams have room for 300 GPT-2 at half of its peak takes 1.24 times plain, as it
  did on one, and 1.05 with each copy asked for with the operation during which it begins.

Covers: when each is asked for, and in which order.
Leaves: what moves (``planning.planner``), which chunks it takes (``seats``), asking (``kernels/iteration/``).
"""

from __future__ import annotations

import math

import numpy as np

from ..records.copies import Copies
from .stays import Stays

__all__ = ["arrivals", "departures"]


def arrivals(stays: Stays) -> Copies:
    """The plan's copies in; tensors and rows of its trace."""
    plan, moves = stays.plan, stays.moves
    asked: list[tuple[int, float, int, int, int]] = []  # row, seconds, tensor, first, last
    for k, g in enumerate(moves.in_gap.tolist()):
        earliest, need = int(moves.in_op[k]), int(moves.in_need[k])
        latest = need if earliest <= need else plan.trace.operations - 1
        for c in range(int(moves.in_first[k]), int(moves.in_last[k])):
            at, row = stays.back.get((g, c), math.inf), earliest
            if at < math.inf:  # else it waits across the turn, and is asked for as planned
                row = min(max(stays.during(at), earliest), latest)
            if asked and asked[-1][0] == row and asked[-1][2:] == (int(plan.in_tensor[k]), asked[-1][3], c):
                asked[-1] = (*asked[-1][:4], c + 1)
            else:
                asked.append((row, at, int(plan.in_tensor[k]), c, c + 1))
    asked.sort()
    rows = np.array([(row, *rest) for row, _, *rest in asked], dtype=np.int64).reshape(-1, 4)
    return Copies(rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3])


def departures(stays: Stays, back: Copies) -> Copies:
    """What leaves, each move whole (side by side it is one copy), and none after it is asked to come `back`."""
    plan, n = stays.plan, stays.plan.trace.operations
    rows = plan.out_op.copy()
    until = np.sort(back.tensor * n + back.op)
    for begins, _, k, _ in stays.line.out:  # what leaves without a copy is not there: it leaves at once
        tensor, ends = int(plan.out_tensor[k]), int(stays.gaps.stop[stays.moves.out_gap[k]]) - 1
        returns = int(np.searchsorted(until, tensor * n + rows[k]))
        if returns < len(until) and until[returns] // n == tensor:
            ends = min(ends, int(until[returns]) % n)
        rows[k] = max(rows[k], min(stays.during(begins), ends, n - 1))
    order = np.argsort(rows, kind="stable")
    return Copies(rows[order], plan.out_tensor[order], plan.out_first[order], plan.out_last[order])
