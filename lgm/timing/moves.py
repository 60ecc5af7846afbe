"""What moves: each copy, or leave that needs none, with the gap that it is for.

Covers: moves as the simulator wants them; those of a finished plan.
Leaves: when each begins (``schedule``), what they cost in time (``simulate``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import LgmError
from ..iteration.lifetimes import Lifetimes, analyze_lifetimes
from ..records.model import Ints, Plan, Trace

__all__ = ["Moves", "bytes_in", "moves_of_plan"]


@dataclass(frozen=True, slots=True)
class Moves:
    """Leaves in order of operation, then arrivals in order of operation. `*_bytes`: what is copied, 0 for free."""

    out_op: Ints
    out_gap: Ints
    out_first: Ints
    out_last: Ints
    out_bytes: Ints
    in_op: Ints
    in_gap: Ints
    in_first: Ints
    in_last: Ints
    in_bytes: Ints
    in_need: Ints


def bytes_in(trace: Trace, tensor: Ints, first: Ints, last: Ints) -> Ints:
    """[k] Of chunks [first, last) of each tensor: the last one of a tensor may be partly used."""
    return np.minimum(last * trace.chunk_bytes, trace.tensor_bytes[tensor]) - first * trace.chunk_bytes


def moves_of_plan(plan: Plan, life: Lifetimes | None = None) -> tuple[Lifetimes, Moves]:
    """The moves of a finished plan, and the lifetimes whose gaps they are for.

    Raises
    ------
    LgmError
        If one leaves where no gap begins, or comes where none ends.
    """
    trace = plan.trace
    life = life or analyze_lifetimes(trace, tails=plan.switches.get("granularity") != "tensor")
    gaps, n = life.gaps, trace.operations
    by_start: dict[tuple[int, int], list[int]] = {}
    by_stop: dict[tuple[int, int], list[int]] = {}
    for g, (t, a, b) in enumerate(zip(gaps.tensor.tolist(), gaps.start.tolist(), gaps.stop.tolist(), strict=True)):
        by_start.setdefault((t, a), []).append(g)
        by_stop.setdefault((t, b % n), []).append(g)

    def gap_of(table: dict[tuple[int, int], list[int]], tensor: int, op: int, first: int) -> int:
        for g in table.get((tensor, op), []):
            if gaps.first[g] <= first < gaps.first[g] + gaps.chunks[g]:
                return g
        raise LgmError(f"the plan moves tensor {tensor} at operation {op}, where no gap begins or ends")

    out = [
        gap_of(by_start, *key)
        for key in zip(plan.out_tensor.tolist(), plan.out_op.tolist(), plan.out_first.tolist(), strict=True)
    ]
    back = [
        gap_of(by_stop, *key)
        for key in zip(plan.in_tensor.tolist(), plan.in_need.tolist(), plan.in_first.tolist(), strict=True)
    ]
    out_gap, in_gap = np.array(out, dtype=np.int64), np.array(back, dtype=np.int64)

    # What left before in the same epoch leaves for free.
    out_bytes = bytes_in(trace, plan.out_tensor, plan.out_first, plan.out_last)
    reached: dict[int, int] = {}
    for k in np.lexsort((plan.out_first, gaps.rank[out_gap])).tolist():
        epoch = int(gaps.epoch[out_gap[k]])
        if epoch < 0 or plan.out_last[k] <= reached.get(epoch, 0):
            out_bytes[k] = 0
        reached[epoch] = max(reached.get(epoch, 0), int(plan.out_last[k]))
    in_bytes = bytes_in(trace, plan.in_tensor, plan.in_first, plan.in_last)
    return life, Moves(
        plan.out_op, out_gap, plan.out_first, plan.out_last, out_bytes,
        plan.in_op, in_gap, plan.in_first, plan.in_last, in_bytes, plan.in_need,
    )  # fmt: skip
