"""A plan by which nothing is copied: what leaves is made again.

For devices that share their memory with the host, where a copy frees nothing, and for training in less RAM.

Covers: the search for what must be dropped so that every operation fits.
Leaves: what can be made again and when (``recompute``), the trace that results (``rewrite``), plans (``planner``).

What is dropped is the cheapest cover of what is too much (``choice``), by what can be made again alone. But making
something again needs room, for its results and for what it reads: where the trace that results is above the budget,
more must be away, and the cover is chosen again.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from . import planner
from .bounds import check_feasible
from .choice import choose
from .errors import InfeasibleError
from .lifetimes import Lifetimes, analyze_lifetimes, cover
from .model import Device, Ints, Plan, Remaking, Trace
from .planner import Progress, Switches
from .problem import Cover
from .recompute import Candidate, candidates, schedule_makings
from .rewrite import rewrite
from .units import format_bytes

__all__ = ["analyze_only"]

_ROUNDS = 24
_TWICE = 0.002  # of the iteration: what is made in less may be made twice
_SECONDS = 0.2  # for improving each cover


def analyze_only(trace: Trace, device: Device, switches: Switches | None, say: Progress) -> Plan:
    """Make a plan without copies. Arguments and errors are those of :func:`lgm.mix.analyze`."""
    life = analyze_lifetimes(trace)
    if life.peak <= device.budget_chunks:
        return planner.analyze(trace, device, switches, say)
    calls, found = candidates(trace, life)
    check_feasible(trace, device, life)
    best: tuple[Trace, Remaking] | None = None
    more = np.zeros(trace.operations, dtype=np.int64)
    lowest = life.peak
    for k in range(_ROUNDS):
        say("made again", k / _ROUNDS)
        wanted = _cheapest(trace, life, found, life.live - device.budget_chunks + more)
        if not wanted:
            break
        again, remaking = rewrite(
            trace, calls, schedule_makings(trace, calls, wanted, lambda one: one.seconds > trace.seconds * _TWICE)
        )
        held = _held(trace, again, remaking)
        lowest = min(lowest, int(held.max()))
        over = np.maximum(held - device.budget_chunks, 0)
        if not over.any():
            if best is None or again.seconds < best[0].seconds:
                best = again, remaking
            break
        more += over
    if best is None:
        raise InfeasibleError(
            trace.describe(int(np.argmax(life.live))),
            lowest * trace.chunk_bytes,
            device.budget_chunks * trace.chunk_bytes,
            f"recompute='only': by making things again alone the iteration needs "
            f"{format_bytes(lowest * trace.chunk_bytes)}, and the budget is "
            f"{format_bytes(device.budget_chunks * trace.chunk_bytes)}; raise it, or allow copies (recompute='auto')",
        )
    plan = planner.analyze(best[0], device, switches, say)
    return replace(plan, remaking=best[1])


def _cheapest(trace: Trace, life: Lifetimes, found: list[Candidate], demand: Ints) -> list[Candidate]:
    """Candidates that together cover the demand, as far as all could, at the least time."""
    if not found:
        return []
    start, stop, chunks = (np.array([getattr(one, name) for one in found]) for name in ("start", "stop", "chunks"))
    price = np.array([one.seconds / one.chunks for one in found])
    possible = np.minimum(demand, cover(trace.operations, start, stop, chunks))
    problem = Cover(trace.operations, possible, start, stop, chunks, price / max(price.max(), 1e-12) + 1e-6)
    used = choose(problem, seconds=_SECONDS)
    return [found[k] for k in np.flatnonzero(used > 0).tolist()]


def _held(trace: Trace, again: Trace, remaking: Remaking) -> Ints:
    """[n] Most chunks alive at each recorded operation and at what is made again before it."""
    live = analyze_lifetimes(again).live
    begins = np.concatenate([[0], remaking.at[:-1] + 1])
    return np.asarray(np.maximum.reduceat(live, begins), dtype=np.int64)
