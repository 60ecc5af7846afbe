"""Operations that need more than the budget: the iteration without what they use, or make, where it waits.

Such an operation brings in as much as there is room for, and uses the rest in place, in the host's memory. To a plan
that rest is away meanwhile, and not needed: all that plans and their checks know of budgets then holds. What an
operation makes is in place, too, as far as there is no room for it; to a plan it is as much smaller for all its life,
so that nothing is said of the rest: it comes when it is used, as without a plan.

Covers: how much each of them uses and makes in place, and of which tensors.
Leaves: planning the rest of the iteration (``analysis``); using something in place, to the engine.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..errors import InfeasibleError
from ..iteration.lifetimes import analyze_lifetimes
from ..iteration.needs import smallest_budget
from ..records.model import Bools, Ints, Trace
from ..records.units import format_bytes

__all__ = ["beyond", "within"]


def within(trace: Trace, budget_chunks: int) -> Trace:
    """The iteration as a budget has it; `trace` itself if no operation needs more.

    Parameters
    ----------
    trace
        As recorded.
    budget_chunks
        Chunks the device has.

    Returns
    -------
    Trace
        The same rows, tensors and calls. Where a row needs too many chunks, its uses of older tensors end sooner, those
        of the largest first; where that is not enough, what it makes is smaller. A chunk of each stays, so that who
        reads and writes what is as before: where an operation has more tensors than there are chunks it still needs too
        much, and no plan fits the budget.
    """
    while True:
        over = analyze_lifetimes(trace).needed - budget_chunks
        last, chunks = trace.use_last.copy(), trace.chunks.copy()
        rows = np.flatnonzero(over > 0).tolist()
        for row in rows:
            _shorten(trace, last, row, int(over[row]))
        if (last == trace.use_last).all():
            for row in rows:
                _shrink(trace, chunks, row, int(over[row]))
        if (last == trace.use_last).all() and (chunks == trace.chunks).all():
            return trace
        smaller = np.minimum(trace.tensor_bytes, chunks * trace.chunk_bytes)
        size = chunks[trace.use_tensor]
        first = np.where(last > size, np.minimum(trace.use_first, size - 1), trace.use_first)
        trace = replace(trace, tensor_bytes=smaller, use_first=first, use_last=np.minimum(last, size))


def beyond(error: InfeasibleError, trace: Trace) -> InfeasibleError:
    """Why there is no plan even so, of an iteration as it was before :func:`within`."""
    nothing_in_place = smallest_budget(trace, analyze_lifetimes(trace))
    text = (
        f"a budget of {format_bytes(error.budget)} is too small: {error.operation} has more tensors than that has "
        f"chunks. There is a plan from {format_bytes(error.needed)} on; from {format_bytes(nothing_in_place)} on "
        "nothing is used in place"
    )
    return InfeasibleError(error.operation, error.needed, error.budget, text)


def _shorten(trace: Trace, last: Ints, row: int, over: int) -> None:
    """Take so many chunks, if there are as many, from the ends of what is used most in a row.

    Nothing where one of its uses is shorter already, as that may have been enough.
    """
    reach = trace.op_last[trace.use_op]
    now = np.flatnonzero((trace.use_op <= row) & (reach >= row) & ~_made_around(trace, row)[trace.use_tensor])
    if (last[now] != trace.use_last[now]).any():
        return
    tensors = np.unique(trace.use_tensor[now])
    ends = np.array([trace.use_last[now][trace.use_tensor[now] == t].max() for t in tensors], dtype=np.int64)
    begins = np.array([trace.use_first[now][trace.use_tensor[now] == t].max() for t in tensors], dtype=np.int64)
    spare = ends - begins - 1
    for k in np.argsort(-spare, kind="stable").tolist():
        taken = min(over, int(spare[k]))
        if taken <= 0:
            return
        of = now[trace.use_tensor[now] == tensors[k]]
        last[of] = np.minimum(last[of], ends[k] - taken)
        over -= taken


def _shrink(trace: Trace, chunks: Ints, row: int, over: int) -> None:
    """Take so many chunks, if there are as many, from the largest of what a row makes; as :func:`_shorten`."""
    made = np.flatnonzero(_made_around(trace, row))
    if (chunks[made] != trace.chunks[made]).any():
        return
    for t in made[np.argsort(-chunks[made], kind="stable")].tolist():
        taken = min(over, int(chunks[t]) - 1)
        chunks[t] -= taken
        over -= taken


def _made_around(trace: Trace, row: int) -> Bools:
    """[m] Whether a tensor is made by an operation that goes on in that row: it is needed for as long as that."""
    born = trace.tensor_born
    outer = np.maximum.accumulate(trace.op_last)
    return (born >= 0) & (born <= row) & (outer[born] >= row)
