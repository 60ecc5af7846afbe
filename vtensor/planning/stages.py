"""Which plans are made of an iteration, one after the other.

Covers: a plan in haste, which only copies (or, without copies, is of the first kind that fits), before the best; a plan
for more than the budget, where nothing is copied and too little can be recomputed.
Leaves: who makes them (``helper``), when (``planner``), how (:mod:`lgm`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Protocol

from torch.autograd import profiler

import lgm
from lgm.analysis import DEAR
from lgm.iteration import analyze_lifetimes
from lgm.planning.oversize import beyond, within
from lgm.remaking.mix import is_enough, only_computes

from .helper import FEW, Busy, Priority, analyze, analyze_here, is_beside

__all__ = ["plans"]

_WORTH = 0.01  # of a step: a plan that gains less does not take the place of one that is followed
_ATTEMPTS = 4  # at a budget that a plan without copies holds
_EASIER = 1.03  # of the least that is needed: with so little more much less is recomputed
_LONGEST = 2.0  # times computing: about what the core has patience for (kernels/engine/patience.h)
_NEARER = 1 / 3  # to the peak, where a plan takes longer


class _Make(Protocol):
    def __call__(
        self, trace: lgm.Trace, device: lgm.Device, recompute: lgm.Recompute, /, *, hasty: bool = False
    ) -> lgm.Plan: ...


def plans(
    trace: lgm.Trace,
    device: lgm.Device,
    recompute: lgm.Recompute,
    *,
    first: bool = True,
    in_haste: bool = True,
    beside: int = 0,
    patient: bool = False,
) -> Iterator[lgm.Plan]:
    """Plans to follow until the next one is there: one in haste, which only copies, is made in a tenth of the time of
    the best. That comes if it is faster (or, without copies, for a smaller budget). Where there is no helper, or no
    haste as there is a plan already, there is one.

    The best is not looked for where no core is idle and nothing waits for copies: the search would take a tenth
    of each step for a minute, and gains about nothing there.

    The `first` of all of few operations is made by the thread that asks: a helper would be begun for a moment's work.
    Those after it take longer, and steps would take two to four times as long meanwhile.

    What one operation needs above the budget is planned as used in place. Where nothing is copied a plan is for more
    than the budget if need be: for `beside` chunks more, as many as were used in place at most, or, if that is
    not enough, for hardly more than the fewest; and, but for the `patient`, for as many as a step needs that takes no
    longer than the core would let it.

    Raises
    ------
    lgm.InfeasibleError
        If there is none.
    Abandoned
        If none is wanted any more.
    """
    few = first and trace.operations <= FEW and not profiler._is_profiler_enabled  # which may look into all threads
    priority = Priority.FIRST if in_haste else Priority.BETTER
    make: _Make = analyze_here if few or not is_beside() else partial(analyze, priority=priority)
    if recompute == "only":
        hasty = few and is_beside()
        yield (plan := _without_copies(partial(make, hasty=hasty), trace, device, beside, patient))
        larger = plan.device.budget_chunks > device.budget_chunks
        if hasty and (larger or plan.trace.seconds > DEAR * trace.seconds):
            try:
                best = _without_copies(partial(analyze, priority=Priority.BETTER), trace, device, beside, patient)
            except lgm.InfeasibleError:
                return
            smaller = best.device.budget_chunks < plan.device.budget_chunks
            if smaller or best.trace.seconds < plan.trace.seconds * (1 - _WORTH):
                yield best
        return
    whole = trace
    trace = within(whole, device.budget_chunks)
    twice = is_beside() and in_haste
    try:
        copying = make(trace, device, "never" if twice else recompute, hasty=twice)
    except lgm.InfeasibleError as error:
        raise error if trace is whole else beyond(error, whole) from None
    yield copying
    if not twice or is_enough(copying.prediction.step_seconds, trace.seconds):
        return
    waits = not only_computes(copying)
    if not waits and (few or recompute == "never"):
        return
    try:
        plan = analyze(trace, device, recompute, priority=Priority.BETTER if waits else Priority.IDLE)
    except Busy:
        return
    if plan.prediction.step_seconds < copying.prediction.step_seconds * (1 - _WORTH):
        yield plan


def _without_copies(make: _Make, trace: lgm.Trace, device: lgm.Device, beside: int, patient: bool) -> lgm.Plan:
    """For the budget, or for one that is larger (see :func:`plans`).

    What is more than the budget the core drops as it comes, or uses in place, as without a plan.
    """
    least = device.budget_chunks + beside
    for _ in range(_ATTEMPTS - 1):
        try:
            plan = make(trace, device, "only")
        except lgm.InfeasibleError as error:  # an operation alone may be what needs more, and then the whole still more
            device = replace(device, budget_chunks=max(math.ceil(error.needed * _EASIER / trace.chunk_bytes), least))
            continue
        if patient or plan.trace.seconds <= _LONGEST * plan.recorded.seconds:
            return plan
        more = math.ceil((analyze_lifetimes(trace).peak - device.budget_chunks) * _NEARER)
        device = replace(device, budget_chunks=max(device.budget_chunks + more, least))
    return make(trace, device, "only")
