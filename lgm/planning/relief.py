"""Room before a rush: more is away than must be, so that what a rush needs can come before it.

An optimizer's step uses each weight, gradient and state once, in a tenth of the time: more has to come in than the lane
carries meanwhile, and operations wait. Before it the lane was idle, as nothing had room to come any sooner. The choice
of what is away (``choice``) does not see that: it covers what must be away by as few bytes as possible, wherever they
move. But chunks that hold few bytes (tails) are cheap room. So two kinds of changes to a finished plan are tried, for
the rows that wait: what is away there is chosen for these rows first, by its bytes, and for all others after that; or
some chunks more than needed are away, in these rows and some before. Arrivals take the room (``schedule``), the
simulator says whether that was worth it, and the fastest is kept.

Covers: which changes are tried, and how many.
Leaves: choosing (``choosing.selection``, ``choosing.choice``), scheduling and simulating (``timing.settling``).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..choosing.choice import choose
from ..choosing.cost import prices
from ..choosing.problem import Cover
from ..choosing.selection import demand, lateness, select
from ..iteration.lifetimes import cover
from ..records.model import Ints, Plan, Prediction
from ..switches import Switches, Timing
from ..timing.moves import Moves, moves_of_plan
from ..timing.settling import HASTES, ROUNDS, settle, work_of_round
from ..timing.simulate import run_plan
from .planner import analyze, finished

__all__ = ["relieve"]

_EFFORT = 130_000  # operations to schedule (``work_of_round``), in all changes that are tried
_MOST, _LEAST = 40, 6  # changes
_WORTH = 0.01  # of a step: where less is waited, nothing is tried
_EDGE = 0.02  # of the waits before the rush, and after it
_FIRST = (0.75, 1.0)  # of what must be away in the rush: so much is chosen for it alone
_MORE = (1 / 64, 1 / 16, 1 / 6)  # of the budget
_NEARER = (0.6, 1.6)  # times what was best of these
_LEAD = 0.1  # of the iteration, before the rush
_LARGE = 1 / 16  # of the budget: a reservation
_WORK = 2e6  # for improving a choice
_LEAST_GAIN = 1e-3  # of a step, for another round
_ENOUGH = 5e-3  # of a step, or the plan stays as it was: what moves more costs calls, which no simulation knows of


@dataclass(frozen=True, slots=True)
class _Way:
    used: Ints
    """[g] Chunks of each gap that are away."""
    moves: Moves
    prediction: Prediction

    @property
    def seconds(self) -> float:
        return self.prediction.step_seconds


def relieve(plan: Plan) -> Plan:
    """The plan, or a faster one for the same trace and device.

    Plans by other switches than the product's are returned as they are, as are those that hardly wait.
    """
    each = work_of_round(plan.trace.operations, len(plan.out_op) + len(plan.in_op))
    tries = min(_EFFORT // max(each, 1), _MOST)
    if plan.switches != Switches().as_dict() or tries < _LEAST or not _waits(plan.prediction):
        return plan
    starts = [plan]
    if plan.reservation > _LARGE * plan.device.budget_chunks:  # room at all times: instead, some where it is needed
        starts.append(replace(analyze(plan.trace, plan.device, reservation=0), remaking=plan.remaking))
    ways = [_Search(start, tries).run() if _waits(start.prediction) else start for start in starts]
    best = min(ways, key=lambda way: way.prediction.step_seconds)
    return best if best.prediction.step_seconds <= plan.prediction.step_seconds * (1 - _ENOUGH) else plan


def _waits(prediction: Prediction) -> bool:
    return prediction.waits_seconds > _WORTH * prediction.step_seconds


class _Search:
    def __init__(self, plan: Plan, tries: int) -> None:
        self.plan, self.trace, self.device, self.tries = plan, plan.trace, plan.device, tries
        self.life, moves = moves_of_plan(plan)
        used = np.zeros(len(self.life.gaps), dtype=np.int64)
        np.add.at(used, moves.out_gap, moves.out_last - moves.out_first)
        self.best = _Way(used, moves, plan.prediction)

    def run(self) -> Plan:
        rush = self._rush()
        found = [self._try(self._first(*rush, share)) for share in _FIRST]
        while self.tries > 0:
            best = min([*found, *self._more(*rush)], key=lambda way: way.seconds)
            if best.seconds > self.best.seconds * (1 - _LEAST_GAIN):
                break
            self.best, found = best, []
            if not _waits(best.prediction):
                break
            rush = self._rush()
        if self.best.prediction is self.plan.prediction:
            return self.plan
        last = [self._settled(self.best.used, timing, thorough=True) for timing in ("packed", "just_in_time")]
        best = min(self.best, *last, key=lambda way: way.seconds)
        again = finished(
            self.trace, self.device, self.life, best.moves, self.plan.reservation, best.prediction, Switches()
        )
        return replace(again, remaking=self.plan.remaking)

    def _try(self, used: Ints) -> _Way:
        self.tries -= 1
        return self._settled(used, "packed", thorough=False)

    def _settled(self, used: Ints, timing: Timing, *, thorough: bool) -> _Way:
        rounds, hastes = (ROUNDS, HASTES) if thorough else (2, HASTES[:1])
        return _Way(used, *settle(self.trace, self.device, self.life, timing, used, rounds, hastes))

    def _rush(self) -> tuple[int, int]:
        """The first and the last row of the part in which nearly all waits are."""
        _, line = run_plan(self.trace, self.device, self.life, self.best.moves)
        share = np.cumsum(line.wait) / np.sum(line.wait)
        begin, end = np.searchsorted(share, (_EDGE, 1 - _EDGE)).tolist()
        return int(begin), int(end)

    def _first(self, begin: int, end: int, share: float) -> Ints:
        """So much of what must be away in the rush is chosen for these rows alone, all the rest after it."""
        wanted = np.maximum(demand(self.life, self.device, self.plan.reservation), 0)
        in_rush = np.zeros_like(wanted)
        in_rush[begin : end + 1] = wanted[begin : end + 1] * share
        used = self._chosen(in_rush, np.zeros(len(self.life.gaps), dtype=np.int64))
        late = lateness(self.trace, self.device, self.life)
        return used + select(
            self.life, self.device, Switches(), self.plan.reservation,
            improve=True, late=late, work=_WORK, already=used,
        )  # fmt: skip

    def _more(self, begin: int, end: int) -> Iterator[_Way]:
        """Some chunks more than now are away in the rush, from its beginning on or from some time before."""
        found: list[tuple[float, int, float]] = []

        def tried(first: int, share: float) -> _Way:
            way = self._try(self._raised(first, end, share))
            found.append((way.seconds, first, share))
            return way

        for first, share in itertools.product((begin, max(begin - int(_LEAD * self.trace.operations), 0)), _MORE):
            if self.tries > 0:
                yield tried(first, share)
        for nearer in _NEARER:
            if self.tries > 0:
                _, first, share = min(found)
                yield tried(first, share * nearer)

    def _raised(self, begin: int, end: int, share: float) -> Ints:
        more = np.zeros(self.trace.operations, dtype=np.int64)
        more[begin : end + 1] = max(int(self.device.budget_chunks * share), 1)
        return self._chosen(more, self.best.used)

    def _chosen(self, wanted: Ints, used: Ints) -> Ints:
        """With so many chunks more away, [n], as far as there are gaps; of the fewest bytes."""
        gaps = self.life.gaps
        left = gaps.chunks - used
        feasible = np.minimum(wanted, cover(len(wanted), gaps.start, gaps.stop, left))
        price = prices(gaps, self.device, "moves", used)
        more = Cover(len(wanted), feasible, gaps.start, gaps.stop, left, price)
        return used + choose(more, improve=True, work=_WORK)
