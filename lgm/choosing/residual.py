"""Improving a cover to the optimum: negative cycles of its residual network.

Covers: the network of a choice (Klein, 1967), its negative cycles by Bellman and Ford, sending flow along them.
Leaves: where the choice comes from and when it is good enough (``choice``).

Operations are the edges of a path, gaps arcs beside it, surplus flows back. Using a gap more is an arc forwards, using
it less one backwards; rows with surplus can be crossed forwards at no price, any row backwards. A cycle of negative
price is a cheaper choice. Cycles are looked for on three copies of the iteration side by side, because one may reach
over the turn.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..iteration.lifetimes import cover
from ..records.model import Ints
from .problem import EPSILON, Cover

__all__ = ["Work", "cancel_cycles"]

_REFUSALS = 60


class Work:
    """How much may still be done, in numbers looked at: some 20 million a second.

    Not in seconds: a plan is the same on any machine, and beside a program that leaves the planner little of the cores.
    """

    _TURN = 500  # numbers, in the time that a turn takes whatever their count

    def __init__(self, left: float) -> None:
        self.left = left

    def turn(self, numbers: int) -> None:
        """A turn over so many is done."""
        self.left -= self._TURN + numbers


def cancel_cycles(problem: Cover, used: Ints, work: Work) -> Ints:
    """Cancel negative cycles until none is found, or until nothing is left of `work`."""
    used = used.copy()
    chance = np.random.default_rng(0)
    refusals = 0
    tight_rows, tight_gaps = np.zeros(problem.n, dtype=bool), np.zeros(len(used), dtype=bool)
    while work.left > 0:
        # A cycle that uses one gap, or the surplus of one row, in two copies of the iteration may ask for more than
        # there is. Then look for others, without some of what was asked for too much: always the same for the same
        # problem.
        residual = _Residual(problem, used, ~tight_rows | (chance.random(problem.n) < 0.5))
        residual.keep(~tight_gaps[residual.gap] | (chance.random(len(residual.gap)) < 0.5))
        progress = False
        for arcs in residual.cycles(work):
            change = np.zeros(len(used), dtype=np.int64)
            np.add.at(change, residual.gap[arcs], residual.sign[arcs])
            amount = _most(problem, used, change)
            if amount > 0 and float((problem.price * change).sum()) < -EPSILON:
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

    def cycles(self, work: Work) -> list[list[int]]:
        """Negative cycles, each as a list of arcs; none if the choice is optimal."""
        dist = np.zeros(self.nodes)
        parent = np.full(self.nodes, -1, dtype=np.int64)  # an arc, or -2 - node for a crossing
        index = np.arange(self.nodes)
        check = 4
        for turn in range(1, 4 * self.nodes):
            work.turn(self.nodes + len(self.gap))
            candidate = dist[self.tail] + self.weight
            reached = dist.copy()
            np.minimum.at(reached, self.head, candidate)
            hit = np.flatnonzero(candidate <= reached[self.head] + 0.0)
            hit = hit[reached[self.head[hit]] < dist[self.head[hit]] - EPSILON]
            if not len(hit):
                return []
            parent[self.head[hit]] = hit
            dist[self.head[hit]] = reached[self.head[hit]]
            # Backwards over any row: the least of all nodes behind.
            least = np.minimum.accumulate(dist[::-1])[::-1]
            origin = np.where(dist == least, index, self.nodes)
            origin = np.minimum.accumulate(origin[::-1])[::-1]
            moved = least < dist - EPSILON
            parent[moved] = -2 - origin[moved]
            dist = np.where(moved, least, dist)
            # Forwards within a run: its least, which after the step before is its first node's.
            first = self.run_starts[self.run]
            forward = dist[first] < dist - EPSILON
            parent[forward] = -2 - first[forward]
            dist = np.where(forward, dist[first], dist)
            if turn == check:
                check *= 2
                found = self._in_parents(parent)
                if found:
                    return found
        return []

    def _in_parents(self, parent: Ints) -> list[list[int]]:
        # After as many steps as there are nodes all are on cycles, or at the end: steps are doubled until then.
        end = self.nodes
        previous = np.full(end + 1, end)
        crossed = np.where(parent == -1, end, -2 - parent)
        previous[:-1] = np.where(parent >= 0, self.tail[np.maximum(parent, 0)], crossed)
        reached = previous
        for _ in range(end.bit_length()):
            reached = reached[reached]
        cycles, seen = [], {end}
        for first in np.unique(reached).tolist():
            node, cycle = first, []
            while node not in seen:
                seen.add(node)
                cycle.append(int(parent[node]))
                node = int(previous[node])
            if cycle:
                cycles.append([arc for arc in cycle if arc >= 0])
        return cycles


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
