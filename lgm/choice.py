"""Which vTensors are away over which gaps: the least cost that keeps every operation within the budget.

Covers: the interval cover on a circle of operations, by a sweep and by improving it to the optimum; whole tensors.
Leaves: prices (``cost``) and when copies begin (``schedule``).

The problem: choose 0 <= x[g] <= chunks[g] of least total price so that over every operation at least ``demand``
chunks are away. Columns are gaps and rows operations; a column's ones are consecutive, so on a line the matrix is
totally unimodular and the optimum is an integral network flow: operations are edges of a path, gaps are arcs beside
it, surplus flows back.

- *Sweep*: at each operation with too little away take the gap that ends last (farthest next use: Belady, 1966). With
  equal prices that is optimal on a line; on the circle it is swept until it repeats.
- *Improve*: the sweep's choice is a feasible flow. While its residual network has a negative cycle (Klein, 1967), send
  flow along it; where none is left the choice is optimal. Cycles are looked for on three copies of the iteration side
  by side, because one may reach over the turn.
"""

from __future__ import annotations

import heapq
import itertools
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .lifetimes import cover
from .model import Ints

__all__ = ["Cover", "choose", "compress"]

Floats = NDArray[np.float64]
_EPSILON = 1e-9
_REFUSALS = 60
_FEW = 40


@dataclass(frozen=True, slots=True)
class Cover:
    """One cover problem on a circle of n rows."""

    n: int
    demand: Ints
    """[n] Chunks that must be away; may be negative."""
    start: Ints
    stop: Ints
    """[g] Rows [start, stop) of each gap; stop may exceed n, by at most start."""
    limit: Ints
    """[g] Most chunks it can give."""
    price: Floats

    def surplus(self, used: Ints) -> Ints:
        return cover(self.n, self.start, self.stop, used) - self.demand

    def total(self, used: Ints) -> float:
        return float((self.price * used).sum())


def compress(problem: Cover) -> Cover:
    """The same problem without the rows at which no gap begins or ends; each row that stays has the largest demand of
    its run.
    """
    n = problem.n
    edges = np.unique(np.concatenate([[0], problem.start, problem.stop % n]))
    row = np.searchsorted(edges, np.arange(n), side="right") - 1
    demand = np.full(len(edges), np.iinfo(np.int64).min)
    np.maximum.at(demand, row, problem.demand)
    start = np.searchsorted(edges, problem.start)
    stop = np.searchsorted(edges, problem.stop % n) + len(edges) * (problem.stop // n)
    return Cover(len(edges), demand, start, stop, problem.limit, problem.price)


def choose(problem: Cover, *, improve: bool = True, whole: bool = False, seconds: float = 1.0) -> Ints:
    """[g] Chunks of each gap to use. Pre: the demand can be met.

    Parameters
    ----------
    problem
        Gaps of price 0 are used first, as far as they are needed.
    improve
        Go on from the sweep to the optimum, for at most about `seconds`; what is found until then is kept.
    whole
        Gaps are used whole or not at all (victims are whole tensors; then the problem is NP-hard, and this the
        sweep's answer).
    """
    if not len(problem.start):
        return np.zeros(0, dtype=np.int64)
    small = compress(problem)
    used = _sweep(small, whole)
    used = _prune(small, used, whole)
    if improve and not whole:
        deadline = time.monotonic() + seconds
        used = _cancel_cycles(small, used, deadline)
        while len(small.start) <= _FEW and time.monotonic() < deadline:
            nudged = _nudge(small, used)
            if small.total(nudged) >= small.total(used) - _EPSILON:
                break
            used = _cancel_cycles(small, nudged, deadline)
    return _prune(small, used, whole, free_too=True)


def _sweep(problem: Cover, whole: bool) -> Ints:
    """Farthest next use first, around the circle until the choice repeats."""
    n, limit = problem.n, problem.limit
    used = np.where(problem.price <= 0, limit, 0)
    base = problem.surplus(used)
    opening: list[list[int]] = [[] for _ in range(n)]
    for g in np.flatnonzero((problem.price > 0) & (limit > 0)).tolist():
        opening[problem.start[g]].append(g)
    stop, limits = problem.stop.tolist(), limit.tolist()
    price = problem.price.tolist()
    deficit = (-base).tolist()
    best: Ints | None = None
    best_price = np.inf
    carried: dict[int, int] = {}
    # What is away at the turn is unknown at first: gaps that reach over it are candidates from row 0 on.
    over = [g for g in np.flatnonzero(problem.stop > n).tolist() if price[g] > 0 and limits[g] > 0]
    for _ in range(4):
        taken = dict(carried)
        ends: list[int] = [0] * (2 * n + 1)
        away = 0
        for g, amount in carried.items():
            away += amount
            ends[stop[g] - n] += amount
        heap: list[tuple[int, float, int, int]] = []
        room = {}
        for g in over:
            left = limits[g] - carried.get(g, 0)
            if left > 0:
                room[g] = left
                heapq.heappush(heap, (-(stop[g] - n), price[g], g, 0))
        period: dict[int, int] = {}
        for row in range(n):
            away -= ends[row]
            for g in opening[row]:
                heapq.heappush(heap, (-stop[g], price[g], g, 1))
            missing = deficit[row] - away
            while missing > 0:
                if not heap:
                    break
                _, _, g, fresh = heap[0]
                final = stop[g] if fresh else stop[g] - n
                have = (limits[g] - period.get(g, 0)) if fresh else room[g]
                if final <= row or have <= 0:
                    heapq.heappop(heap)
                    continue
                amount = have if whole else min(have, missing)
                away += amount
                missing -= amount
                ends[final] += amount
                if fresh:
                    period[g] = period.get(g, 0) + amount
                else:
                    room[g] -= amount
                    taken[g] = taken.get(g, 0) + amount
        carried_out = {g: amount for g, amount in period.items() if stop[g] > n}
        # Close the circle: a gap over the turn is used as far as either end of it asks for.
        closed = np.where(problem.price <= 0, limit, 0)
        for source in (period, taken):
            for g, amount in source.items():
                closed[g] = max(closed[g], amount)
        closed = _prune(problem, closed, whole)
        total = problem.total(closed)
        if total < best_price - _EPSILON:
            best, best_price = closed, total
        if carried_out == carried:
            break
        carried = carried_out
    assert best is not None
    return best


def _prune(problem: Cover, used: Ints, whole: bool, free_too: bool = False) -> Ints:
    """Take back what is not needed, the dearest first; gaps of price 0 only if asked for."""
    used = used.copy()
    surplus = problem.surplus(used)
    n = problem.n
    for g in np.lexsort((problem.stop - problem.start, -problem.price)).tolist():
        if used[g] == 0 or (problem.price[g] <= 0 and not free_too):
            continue
        a, b = int(problem.start[g]), int(problem.stop[g])
        spare = int(surplus[a : min(b, n)].min())
        if b > n:
            spare = min(spare, int(surplus[: b - n].min()))
        amount = min(spare, int(used[g]))
        if amount <= 0 or (whole and amount < used[g]):
            continue
        used[g] -= amount
        surplus[a : min(b, n)] -= amount
        if b > n:
            surplus[: b - n] -= amount
    return used


class _Residual:
    """The residual network of a choice, on three copies of the iteration side by side."""

    COPIES = 3

    def __init__(self, problem: Cover, used: Ints, rows: NDArray[np.bool_]) -> None:
        """`rows`: where surplus may be crossed."""
        self.problem = problem
        n = problem.n
        self.nodes = self.COPIES * n + 1
        more = np.flatnonzero((used < problem.limit) & (problem.price > 0))
        less = np.flatnonzero((used > 0) & (problem.price > 0))
        gap = np.concatenate([more, less])
        sign = np.concatenate([np.ones(len(more), dtype=np.int64), -np.ones(len(less), dtype=np.int64)])
        tail = np.concatenate([problem.start[more], problem.stop[less]])
        head = np.concatenate([problem.stop[more], problem.start[less]])
        weight = np.concatenate([problem.price[more], -problem.price[less]])
        shift = np.repeat(np.arange(self.COPIES) * n, len(gap))
        self.gap, self.sign = np.tile(gap, self.COPIES), np.tile(sign, self.COPIES)
        self.tail, self.head = np.tile(tail, self.COPIES) + shift, np.tile(head, self.COPIES) + shift
        self.weight = np.tile(weight, self.COPIES)
        inside = (self.tail < self.nodes) & (self.head < self.nodes)
        self.keep(inside)
        # A run of rows with surplus can be crossed forwards at no price; any row can be crossed backwards.
        spare = np.tile((problem.surplus(used) > 0) & rows, self.COPIES)
        self.run = np.concatenate([[0], np.cumsum(~spare)])
        self.run_starts = np.flatnonzero(np.concatenate([[True], np.diff(self.run) > 0]))

    def keep(self, which: NDArray[np.bool_]) -> None:
        """Leave out the arcs where `which` is False."""
        self.gap, self.sign, self.tail, self.head, self.weight = (
            a[which] for a in (self.gap, self.sign, self.tail, self.head, self.weight)
        )

    def cycles(self) -> list[list[int]]:
        """Negative cycles, each as a list of arcs; none if the choice is optimal."""
        dist = np.zeros(self.nodes)
        parent = np.full(self.nodes, -1, dtype=np.int64)  # an arc, or -2 - node for a crossing
        index = np.arange(self.nodes)
        check = 4
        for turn in range(1, 4 * self.nodes):
            candidate = dist[self.tail] + self.weight
            reached = dist.copy()
            np.minimum.at(reached, self.head, candidate)
            hit = np.flatnonzero(candidate <= reached[self.head] + 0.0)
            hit = hit[reached[self.head[hit]] < dist[self.head[hit]] - _EPSILON]
            if not len(hit):
                return []
            parent[self.head[hit]] = hit
            dist[self.head[hit]] = reached[self.head[hit]]
            # Backwards over any row: the least of all nodes behind.
            least = np.minimum.accumulate(dist[::-1])[::-1]
            origin = np.where(dist == least, index, self.nodes)
            origin = np.minimum.accumulate(origin[::-1])[::-1]
            moved = least < dist - _EPSILON
            parent[moved] = -2 - origin[moved]
            dist = np.where(moved, least, dist)
            # Forwards within a run: its least, which after the step before is its first node's.
            first = self.run_starts[self.run]
            forward = dist[first] < dist - _EPSILON
            parent[forward] = -2 - first[forward]
            dist = np.where(forward, dist[first], dist)
            if turn == check:
                check *= 2
                found = self._in_parents(parent)
                if found:
                    return found
        return []

    def _in_parents(self, parent: Ints) -> list[list[int]]:
        previous = np.where(
            parent >= 0, self.tail[np.maximum(parent, 0)], np.where(parent <= -2, -2 - parent, -1)
        ).tolist()
        state = [0] * self.nodes
        cycles = []
        arcs = parent.tolist()
        for node in range(self.nodes):
            path = []
            at = node
            while at >= 0 and state[at] == 0:
                state[at] = node + 1
                path.append(at)
                at = previous[at]
            if at >= 0 and state[at] == node + 1 and path:
                cycle = path[path.index(at) :]
                cycles.append([arcs[v] for v in cycle if arcs[v] >= 0])
        return cycles


def _cancel_cycles(problem: Cover, used: Ints, deadline: float) -> Ints:
    used = used.copy()
    chance = np.random.default_rng(0)
    refusals = 0
    tight_rows, tight_gaps = np.zeros(problem.n, dtype=bool), np.zeros(len(used), dtype=bool)
    while time.monotonic() < deadline:
        # A cycle that uses one gap, or the surplus of one row, in two copies of the iteration may ask for more than
        # there is. Then look for others, without some of what was asked for too much: always the same for the same
        # problem.
        residual = _Residual(problem, used, ~tight_rows | (chance.random(problem.n) < 0.5))
        residual.keep(~tight_gaps[residual.gap] | (chance.random(len(residual.gap)) < 0.5))
        progress = False
        for arcs in residual.cycles():
            change = np.zeros(len(used), dtype=np.int64)
            np.add.at(change, residual.gap[arcs], residual.sign[arcs])
            amount = _most(problem, used, change)
            if amount > 0 and float((problem.price * change).sum()) < -_EPSILON:
                used = used + amount * change
                progress = True
            elif not progress:
                tight_gaps |= (used + change < 0) | (used + change > problem.limit)
                falls = cover(problem.n, problem.start, problem.stop, change)
                tight_rows |= (falls < 0) & (problem.surplus(used) + falls < 0)
        refusals = 0 if progress else refusals + 1
        if progress:
            tight_rows[:], tight_gaps[:] = False, False
        elif refusals > _REFUSALS or not (tight_rows.any() or tight_gaps.any()):
            break
    return used


def _nudge(problem: Cover, used: Ints) -> Ints:
    """One or two chunks more of one gap or of a pair, for less of others.

    On a circle an integral choice without a cycle that helps may still be one chunk short of the optimum. That matters
    where there are few.
    """
    best = problem.total(used)
    can = np.flatnonzero((used < problem.limit) & (problem.price > 0)).tolist()
    for more in [(g,) for g in can] + [(g, g) for g in can] + list(itertools.combinations(can, 2)):
        trial = used.copy()
        for g in more:
            trial[g] = min(trial[g] + 1, problem.limit[g])
        trial = _prune(problem, trial, False)
        if problem.total(trial) < best - _EPSILON:
            return trial
    return used


def _most(problem: Cover, used: Ints, change: Ints) -> int:
    """How often `change` can be added to `used`."""
    ratios: list[Any] = [
        (problem.limit - used)[change > 0] // change[change > 0],
        used[change < 0] // -change[change < 0],
    ]
    rows = cover(problem.n, problem.start, problem.stop, change)
    falls = rows < 0
    ratios.append(problem.surplus(used)[falls] // -rows[falls])
    ratios = [r for r in ratios if len(r)]
    return int(min(r.min() for r in ratios)) if ratios else 0
