"""Which gaps are used: what must be away at each operation, and the cover problem that says how.

Covers: the demand with its reservation, gaps that open late, choosing by assumed prices and again by those that follow.
Leaves: solving the problem (``choice``), prices (``cost``), how much is reserved (``planning.planner``).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..iteration.lifetimes import Lifetimes, cover
from ..records.model import Device, Floats, Ints, Trace
from ..records.rows import nominal
from ..switches import Costs, Switches
from .choice import MUCH, choose
from .cost import prices, traffic
from .problem import Cover

__all__ = ["demand", "lateness", "select"]


def demand(life: Lifetimes, device: Device, reservation: int) -> Ints:
    """[n] Chunks that must be away. Where one operation needs nearly all, the reservation shrinks for it."""
    room = np.maximum(device.budget_chunks - reservation, np.minimum(life.needed, device.budget_chunks))
    return life.live - room


def lateness(trace: Trace, device: Device, life: Lifetimes) -> Ints:
    """[g] For how many operations after a gap opens less than half of its chunks can have been copied out.

    For those a choice does not count on it, if it can: they would wait for chunks that another gap, open for longer,
    had given up in time.
    """
    gaps, begin = life.gaps, nominal(trace)
    copying = np.where(gaps.epoch < 0, 0.0, gaps.chunks * (gaps.bytes / device.out_speed + device.latency))
    two_turns = np.concatenate([begin[:-1], begin[:-1] + begin[-1], 2 * begin[-1:]])
    open_at: Ints = np.searchsorted(two_turns, begin[gaps.start] + copying / 2).astype(np.int64)
    late: Ints = np.maximum(open_at - gaps.start, 0)
    return late


def select(
    life: Lifetimes,
    device: Device,
    switches: Switches,
    reservation: int,
    *,
    improve: bool,
    late: Ints | None = None,
    work: float = MUCH,
    already: Ints | None = None,
) -> Ints:
    """[g] Chunks of each gap that are away, beside those that are already.

    Parameters
    ----------
    switches
        With ``costs="auto"``, by the costs of moves.
    improve
        Whether to look for the least cost, by about so much `work` (``choice``); else the farthest next use.
    late
        [g] See :func:`lateness`.
    """
    gaps = life.gaps
    whole = switches.granularity == "tensor"
    wanted, limit = demand(life, device, reservation), gaps.chunks
    if already is not None:
        wanted, limit = wanted - cover(len(wanted), gaps.start, gaps.stop, already), limit - already
    problem = Cover(len(wanted), wanted, gaps.start, gaps.stop, limit, np.zeros(len(gaps)))

    def choice(price: Floats) -> Ints:
        priced = replace(problem, price=price)
        used = np.zeros(len(gaps), dtype=np.int64)
        if late is not None:
            used = choose(_in_time(priced, late), improve=improve, whole=whole, work=work)
        rest = priced.surplus(used)
        if (rest < 0).any():
            left = replace(priced, demand=-rest, limit=limit - used)
            used = used + choose(left, improve=improve, whole=whole, work=work)
        return used

    def copying(used: Ints) -> float:
        out, back = traffic(gaps, used)
        return out / device.out_speed + back / device.in_speed

    costs: Costs = "moves" if switches.costs == "auto" else switches.costs
    assumed = prices(gaps, device, costs)
    used = choice(assumed)
    if not improve:
        return used
    actual = prices(gaps, device, costs, used)
    if np.array_equal(actual, assumed):
        return used
    return min(used, choice(actual), key=copying)


def _in_time(problem: Cover, late: Ints) -> Cover:
    """The problem with gaps that open later; of the demand, what these can meet."""
    start = problem.start + late
    never = start >= problem.stop
    start = np.where(never, problem.start, start)
    turn = (start >= problem.n) * problem.n
    limit = np.where(never, 0, problem.limit)
    timely = replace(problem, start=start - turn, stop=problem.stop - turn, limit=limit)
    return replace(timely, demand=np.minimum(problem.demand, cover(problem.n, timely.start, timely.stop, limit)))
