"""A plan by which nothing is copied: what leaves is recomputed.

For devices that share their memory with the host, where a copy frees nothing, and for training in less RAM.

Covers: the search for what must be dropped so that every operation fits.
Leaves: what can be recomputed and when (``recompute``), the trace that results (``rewrite``), plans
(``planning.planner``).

What is dropped is the cheapest cover of what is too much (``choice``), by what can be recomputed alone. But making
something again needs room, for its results and for what it reads: where the trace that results is above the budget,
more must be away, and the cover is chosen again. Tensors are of many chunks, and some more may be no other cover: each
round that is none the better asks for twice as much more.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..choosing.choice import choose
from ..choosing.problem import Cover
from ..errors import InfeasibleError
from ..iteration.calls import Calls
from ..iteration.lifetimes import Lifetimes, analyze_lifetimes, cover
from ..iteration.needs import check_feasible
from ..planning import planner
from ..progress import Progress, part
from ..records.model import Device, Ints, Plan, Trace
from ..records.rows import describe
from ..records.units import format_bytes
from ..switches import Switches
from .recompute import Candidate, candidates, schedule_makings
from .rewrite import Rewritten, rewrite

__all__ = ["SEARCHING", "analyze_only", "needs"]

_PATIENCE = 5  # rounds that find no lower peak
_WORK = 4e6  # for improving each cover
_EFFORT = 100_000  # operations to look at, more or less
# What is made by the way and needed within such a part of the iteration is kept from then on; what takes less than such
# a part is otherwise made twice. Which serves best depends on the model; the later ones seldom where little is dear.
_HABITS = (
    *((0.1, 0.002), (0.03, 0.0), (0.03, 0.02), (0.3, 0.0), (0.1, 0.02), (0.01, 0.02)),
    *((0.06, 0.02), (0.06, 0.006), (0.3, 0.02), (0.01, 0.05)),
)
_USUAL = 6  # of them
SEARCHING = 0.9  # of all that is told of: then what was found is planned
_ENOUGH = 1.1  # times computing: where it takes longer the others are tried, too


def analyze_only(
    trace: Trace, device: Device, switches: Switches | None, say: Progress, *, hasty: bool = False
) -> Plan:
    """Make a plan without copies. Arguments and errors are those of :func:`lgm.analyze`."""
    life = analyze_lifetimes(trace)
    if life.peak <= device.budget_chunks:
        return planner.analyze(trace, device, switches, say)
    check_feasible(trace, device, life)
    calls, found = candidates(trace, life)
    # To ask for what cannot be had would have all dropped at once, and making that again needs more than is lacking.
    least = int((life.live - _possible(trace, found)).max())
    # Asked for the least there is, the search may get below a budget that it does not reach when asked for just that;
    # and what it names as needed hardly depends on the budget.
    goals = sorted({max(device.budget_chunks, least), least}, reverse=True)
    habits = _HABITS[: max(1, _EFFORT // (4 * trace.operations))]
    best: Rewritten | None = None
    lowest, tries = life.peak, 0
    for goal in goals:
        first = _cheapest(trace, found, life.live - goal)
        for k, (soon, twice) in enumerate(habits):
            if k >= _USUAL and (hasty or (best is not None and best.trace.seconds <= trace.seconds * _ENOUGH)):
                break
            say("recomputed", SEARCHING * tries / (len(goals) * len(habits)))
            tries += 1
            again, peak = _search(trace, life, calls, found, first, replace(device, budget_chunks=goal), soon, twice)
            lowest = min(lowest, peak)
            if peak <= device.budget_chunks and again and (best is None or again.trace.seconds < best.trace.seconds):
                best = again
        if best is not None:
            break
    if best is None:
        raise needs(trace, life, lowest, device)
    plan = planner.analyze(best.trace, device, switches, part(say, SEARCHING, 1.0))
    return replace(plan, remaking=best.remaking)


def needs(trace: Trace, life: Lifetimes, lowest: int, device: Device) -> InfeasibleError:
    """To be raised where making things again gets to `lowest` chunks, and that is above the budget."""
    least, budget = lowest * trace.chunk_bytes, device.budget_chunks * trace.chunk_bytes
    return InfeasibleError(
        describe(trace, int(np.argmax(life.live))),
        least,
        budget,
        f"recompute='only': by making things again alone the iteration needs {format_bytes(least)}, and the budget is "
        f"{format_bytes(budget)}; raise it, or allow copies (recompute='auto')",
    )


def _search(
    trace: Trace,
    life: Lifetimes,
    calls: Calls,
    found: list[Candidate],
    wanted: list[Candidate],
    device: Device,
    soon: float,
    twice: float,
) -> tuple[Rewritten | None, int]:
    """The first trace found that stays within the budget, or that of the lowest peak, from those first `wanted` on."""
    more = np.zeros(trace.operations, dtype=np.int64)
    best: Rewritten | None = None
    lowest, worse = life.peak, 0
    while worse < _PATIENCE:
        makings = schedule_makings(trace, calls, wanted, lambda one: one.seconds > trace.seconds * twice, soon)
        if not makings:
            break
        again = rewrite(trace, calls, makings, device.switch)
        held = _held(again)
        worse += 1
        if held.max() < lowest:
            best, lowest, worse = again, int(held.max()), 0
        if lowest <= device.budget_chunks:
            break
        more += np.maximum(held - device.budget_chunks, 0) << max(worse - 1, 0)
        wanted = _cheapest(trace, found, life.live - device.budget_chunks + more)
    return best, lowest


def _possible(trace: Trace, found: list[Candidate]) -> Ints:
    """[n] Chunks that all candidates together cover."""
    start, stop, chunks = _intervals(found)
    return cover(trace.operations, start, stop, chunks)


def _intervals(found: list[Candidate]) -> tuple[Ints, Ints, Ints]:
    start, stop, chunks = (
        np.array([getattr(one, name) for one in found], dtype=np.int64) for name in ("start", "stop", "chunks")
    )
    return start, stop, chunks


def _cheapest(trace: Trace, found: list[Candidate], demand: Ints) -> list[Candidate]:
    """Candidates that together cover the demand, as far as all could, at the least time."""
    if not found:
        return []
    start, stop, chunks = _intervals(found)
    price = np.array([one.seconds / one.chunks for one in found])
    possible = np.minimum(demand, cover(trace.operations, start, stop, chunks))
    problem = Cover(trace.operations, possible, start, stop, chunks, price / max(price.max(), 1e-12) + 1e-6)
    used = choose(problem, work=_WORK)
    return [found[k] for k in np.flatnonzero(used > 0).tolist()]


def _held(again: Rewritten) -> Ints:
    """[n] Most chunks alive at each recorded operation and at what is recomputed before it."""
    live = analyze_lifetimes(again.trace).live
    begins = np.concatenate([[0], again.remaking.at[:-1] + 1])
    return np.asarray(np.maximum.reduceat(live, begins), dtype=np.int64)
