"""What is recomputed and what is copied, so that a step is shortest: the search over prices.

How much a second of copying costs depends on how busy the lanes are, which nobody knows before all is chosen. So a
price is put on it, both ways are chosen among by that price (``recompute``), the trace in which those are recomputed
(``rewrite``) is planned like any other (``planner``), and several prices are tried. One price for all of the iteration
leaves the lanes idle where it is quiet: so of what is recomputed at the best price, what is dearest is copied after
all, as long as that is faster. The fastest plan that the simulator finds is kept, the one that only copies among them:
mixing is never slower.

Covers: the search over prices, and for what is better copied.
Leaves: what can be recomputed and when (``recompute``), the trace that results (``rewrite``), plans
(``planning.planner``), when a mix is asked for (``analysis``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..iteration.lifetimes import analyze_lifetimes
from ..planning import planner
from ..progress import Progress
from ..records.model import Device, Plan, Trace
from ..switches import Switches
from .recompute import Making, candidates, choose_makings, copying_seconds
from .rewrite import Rewritten, rewrite

__all__ = ["Search", "is_enough", "most_tries", "only_computes"]

_TRIES = 20  # plans drafted
_EFFORT = 32_000  # operations to draft plans for, in all of them
_PRICES = 0.6  # of the tries, at most
_FEW_TRIES = 4  # where nothing waits for copies
_ENOUGH = 0.015  # of the time of computing: who is slower by no more is not looked at any further
_IN_VAIN = 6  # tries one by one, until no more are made
_LEAST_GAIN = 2e-4  # of a step: what drafts differ by means something


def only_computes(plan: Plan) -> bool:
    """Whether nothing waits for lanes: all that is lost is the computing time that moves take. Then the price of a copy
    is known, and a search for it gains little.
    """
    return is_enough(plan.trace.seconds + plan.prediction.waits_seconds, plan.trace.seconds)


def is_enough(step: float, computing: float) -> bool:
    """Whether no plan is looked for that is faster than such a step."""
    return step <= computing * (1 + _ENOUGH)


def most_tries(trace: Trace) -> int:
    """How many plans a search drafts at most."""
    return int(np.clip(_EFFORT // max(trace.operations, 1), 1, _TRIES))


@dataclass(frozen=True, slots=True)
class _Draft:
    """What is recomputed, and how fast a plan drafted for it is."""

    share: float
    copied: frozenset[tuple[int, ...]]
    """Gaps whose contents are copied, whatever making them again would cost."""
    makings: list[Making]
    seconds: float


class Search:
    """For what to recompute so that the simulated step is shortest.

    At each price as many are recomputed as are cheaper than their copies: prices are tried by their share of all that
    could be, so that neither the device's speeds nor the model's matter.
    """

    def __init__(
        self, trace: Trace, device: Device, switches: Switches | None, say: Progress, copying_only: Plan
    ) -> None:
        self.trace, self.device, self.switches, self.say = trace, device, switches, say
        self.life = analyze_lifetimes(trace)
        self.calls, self.found = candidates(trace, self.life)
        self.copying = copying_seconds(trace, self.life, device)
        dearness = [one.seconds / (one.chunks * self.copying[list(one.gaps)].mean()) for one in self.found]
        self.prices = np.sort(np.repeat(dearness, [one.chunks for one in self.found])) if self.found else np.zeros(0)
        self.tries = most_tries(trace)
        if only_computes(copying_only):
            self.tries = min(self.tries, _FEW_TRIES)
        self.fastest = copying_only
        # Finding the best reservation for each draft took half of the time, and gave nothing: it differs little.
        self.reservation = copying_only.reservation
        # Of a step, by what is recomputed.
        self.seconds: dict[tuple[tuple[int, int, int], ...], float] = {(): copying_only.prediction.step_seconds}

    def run(self) -> Plan:
        """The fastest plan found; the one that only copies if none is faster."""
        if self.found and not self.is_enough():
            best = self.copy_dearest(self.best_price())
            if best.makings and not planner.drafts_are_plans(self.fastest, self.switches):
                self.plan(rewrite(self.trace, self.calls, best.makings, self.device.switch), None)
        return self.fastest

    def best_price(self) -> _Draft:
        """By halves: too little that is recomputed waits for copies, too much takes the time of making it."""
        drafts: dict[float, _Draft] = {}
        shares, width = [0.5, 0.75, 0.25, 1.0], 0.125
        most, least_width = max(self.tries * _PRICES, 1), 1 / max(len(self.prices), 8)
        while shares and len(self.seconds) <= most and width >= least_width and not self.is_enough():
            share = shares.pop(0)
            drafts[share] = self.draft(share)
            if not shares:
                best = self.best_share(drafts)
                shares = [each for each in (best - width, best + width) if 0 < each <= 1 and each not in drafts]
                width /= 2
        return drafts[self.best_share(drafts)]

    def is_enough(self) -> bool:
        return is_enough(self.fastest.prediction.step_seconds, self.trace.seconds)

    def best_share(self, drafts: dict[float, _Draft]) -> float:
        """Of equals the one that makes least again: a lower price may be better, a higher one is not."""
        return min(sorted(drafts), key=lambda share: drafts[share].seconds)

    def copy_dearest(self, best: _Draft) -> _Draft:
        """What costs most for its bytes is copied after all, first much of it at once, then one by one."""
        dropped: set[Making] = set()  # for which there is no better
        many, in_vain = max(len(best.makings) // 4, 1), 0
        while len(self.seconds) <= self.tries and in_vain < _IN_VAIN and not self.is_enough():
            makings = sorted((one for one in best.makings if one not in dropped), key=self.dearness, reverse=True)
            if not makings:
                break
            copied = best.copied.union(one.gaps for making in makings[:many] for one in making.targets)
            other = self.draft(best.share, copied)
            if other.seconds < best.seconds * (1 - _LEAST_GAIN):
                best, in_vain = other, 0
            elif many > 1:
                many //= 2
            else:
                dropped.add(makings[0])
                in_vain += 1
        return best

    def dearness(self, making: Making) -> float:
        """Seconds it takes for each of copying."""
        chunks, gaps = self.life.gaps.chunks, [g for one in making.targets for g in one.gaps]
        return sum(self.calls.seconds[c] for c in making.calls) / float((self.copying[gaps] * chunks[gaps]).sum())

    def draft(self, share: float, copied: frozenset[tuple[int, ...]] = frozenset()) -> _Draft:
        """At the price at which such a share could be recomputed."""
        price = float(self.prices[min(int(share * len(self.prices)), len(self.prices) - 1)]) * (1 + 1e-6)
        while True:
            found = [one for one in self.found if one.gaps not in copied]
            makings = choose_makings(self.trace, self.life, self.device, self.calls, found, self.copying * price)
            key = tuple((one.tensor, one.start, one.stop) for making in makings for one in making.targets)
            if key in self.seconds:
                return _Draft(share, copied, makings, self.seconds[key])
            again = rewrite(self.trace, self.calls, makings, self.device.switch)
            large = _too_large(again, makings, self.device.budget_chunks)
            if not large:
                break
            copied = copied.union(one.gaps for making in large for one in making.targets)
        self.say("recomputed", len(self.seconds) / (self.tries + 1))
        self.seconds[key] = self.plan(again, self.reservation)
        return _Draft(share, copied, makings, self.seconds[key])

    def plan(self, again: Rewritten, reservation: int | None) -> float:
        """Seconds of a step; a draft, if the reservation is given."""
        plan = planner.analyze(again.trace, self.device, self.switches, reservation=reservation)
        if plan.prediction.step_seconds < self.fastest.prediction.step_seconds:
            self.fastest = replace(plan, remaking=again.remaking)
        return plan.prediction.step_seconds


def _too_large(again: Rewritten, makings: list[Making], budget_chunks: int) -> list[Making]:
    """Those of which one needs more than the budget at once, for all that it reads and makes."""
    rows = np.flatnonzero((analyze_lifetimes(again.trace).needed > budget_chunks) & again.remaking.rows_again)
    first = np.unique(again.remaking.make_op)  # each making begins where its targets do
    return [makings[k] for k in np.unique(np.searchsorted(first, rows, side="right") - 1).tolist()]
