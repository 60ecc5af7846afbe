"""A choice of gaps in one pass: at each operation with too little away, the gap that ends last.

Covers: farthest next use first (Belady, 1966), around the circle until it repeats; giving back what is not needed.
Leaves: the least price (``choice``, ``residual``). With equal prices this is it on a line.
"""

from __future__ import annotations

import heapq

import numpy as np

from ..records.model import Bools, Ints
from .problem import EPSILON, Cover

__all__ = ["prune", "sweep"]

_TURNS = 4  # at most: which gaps reach over the turn repeats before


def sweep(problem: Cover, whole: bool) -> Ints:
    """[g] Chunks of each gap: all of those of price 0, of the others as many as are missing, farthest next use first.

    Parameters
    ----------
    whole
        Gaps are used whole or not at all.
    """
    circle, carried = _Circle(problem, whole), dict[int, int]()
    best: Ints | None = None
    for _ in range(_TURNS):
        late, fresh = circle.turn(carried)
        # Close the circle: a gap over the turn is used as far as either end of it asks for.
        closed = circle.free.copy()
        for source in (fresh, late):
            for g, amount in source.items():
                closed[g] = max(closed[g], amount)
        closed = prune(problem, closed, whole)
        if best is None or problem.total(closed) < problem.total(best) - EPSILON:
            best = closed
        # What is away at the turn is unknown at first.
        over = {g: amount for g, amount in fresh.items() if problem.stop[g] > problem.n}
        if over == carried:
            break
        carried = over
    assert best is not None
    return best


class _Circle:
    """A problem as its rows are passed one by one, in local lists: most of a sweep is spent there."""

    def __init__(self, problem: Cover, whole: bool) -> None:
        n, start, price = problem.n, problem.start, problem.price
        self.n, self.whole = n, whole
        self.free = np.where(price <= 0, problem.limit, 0)
        self.missing = (-problem.surplus(self.free)).tolist()
        self.stop, self.limit, self.price = problem.stop.tolist(), problem.limit.tolist(), price.tolist()
        priced = np.flatnonzero((price > 0) & (problem.limit > 0))
        priced = priced[np.argsort(start[priced], kind="stable")]
        self.opening = [(-self.stop[g], self.price[g], g, True) for g in priced.tolist()]
        self.opens = np.searchsorted(start[priced], np.arange(n + 1)).tolist()  # from which of them on, by row
        self.over = np.sort(priced[problem.stop[priced] > n]).tolist()  # those that reach over the turn

    def turn(self, carried: dict[int, int]) -> tuple[dict[int, int], dict[int, int]]:
        """Chunks of gaps that were open when it began, with those `carried` into it; and of gaps that open in it."""
        n, stop, limit, whole, opens = self.n, self.stop, self.limit, self.whole, self.opens
        late, fresh = dict(carried), dict[int, int]()
        away = sum(carried.values())
        ends = [0] * (2 * n + 1)
        for g, amount in carried.items():
            ends[stop[g] - n] += amount
        left = {g: limit[g] - carried.get(g, 0) for g in self.over}
        heap = [(n - stop[g], self.price[g], g, False) for g in self.over if left[g] > 0]
        heapq.heapify(heap)
        for row in range(n):
            away -= ends[row]
            if opens[row] < opens[row + 1]:
                for opened in self.opening[opens[row] : opens[row + 1]]:
                    heapq.heappush(heap, opened)
            missing = self.missing[row] - away
            while missing > 0 and heap:
                minus_stop, _, g, opens_here = heap[0]
                have = limit[g] - fresh.get(g, 0) if opens_here else left[g]
                if -minus_stop <= row or have <= 0:
                    heapq.heappop(heap)
                    continue
                amount = have if whole or have < missing else missing
                away += amount
                missing -= amount
                ends[-minus_stop] += amount
                taken = fresh if opens_here else late
                taken[g] = taken.get(g, 0) + amount
                if not opens_here:
                    left[g] -= amount
        return late, fresh


def prune(problem: Cover, used: Ints, whole: bool, free_too: bool = False) -> Ints:
    """Take back what is not needed, the dearest first; gaps of price 0 only if asked for."""
    surplus = problem.surplus(used)
    some = problem.least(surplus) > 0
    if not free_too:
        some &= problem.price > 0
    return _take_back(problem, used, surplus, some, whole)


def _take_back(problem: Cover, used: Ints, surplus: Ints, some: Bools, whole: bool) -> Ints:
    """Less of the gaps in `some`, [g], the dearest first, as far as the `surplus` of `used` goes.

    Most gaps are needed whole, and remain so: what is taken back leaves less to spare.
    """
    used, surplus, n = used.copy(), surplus.copy(), problem.n
    some = some & (used > 0)
    for g in problem.dearest_first[some[problem.dearest_first]].tolist():
        a, b = int(problem.start[g]), int(problem.stop[g])
        there = surplus[a:b]  # up to the turn
        spare = int(there.min())
        if b > n:
            spare = min(spare, int(surplus[: b - n].min()))
        amount = min(spare, int(used[g]))
        if amount <= 0 or (whole and amount < used[g]):
            continue
        used[g] -= amount
        there -= amount
        if b > n:
            surplus[: b - n] -= amount
    return used
