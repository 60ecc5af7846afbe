"""The problem the choice solves: cover a circle of operations with gaps, at the least price.

Covers: the problem, its size reduced to the rows that matter.
Leaves: solving it (``choice``, ``residual``), making it from a trace (``selection``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..iteration.lifetimes import cover
from ..records.model import Floats, Ints

__all__ = ["EPSILON", "Cover", "compress"]

EPSILON = 1e-9  # prices that differ by less are one


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
    dearest_first: Ints = field(init=False, repr=False)
    """[g] The order in which gaps are best given up: by falling price, of one price the shorter first."""
    _halves: list[tuple[Ints, Ints, Ints]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # Asked for thousands of times of one problem, so made once. Each range of rows is the union of two whose
        # length is a power of two: gaps of one such length, and where its two ranges begin.
        length = self.stop - self.start
        halvings = np.frexp(length)[1] - 1
        halves = []
        for k in range(int(halvings.max(initial=-1)) + 1):
            gaps = np.flatnonzero(halvings == k)
            halves.append((gaps, self.start[gaps], self.stop[gaps] - (1 << k)))
        object.__setattr__(self, "_halves", halves)
        object.__setattr__(self, "dearest_first", np.lexsort((length, -self.price)))

    def surplus(self, used: Ints) -> Ints:
        return cover(self.n, self.start, self.stop, used) - self.demand

    def least(self, value: Ints) -> Ints:
        """[..., g] The least `value` ([..., n]) over each gap's rows."""
        least = np.empty((*value.shape[:-1], len(self.start)), dtype=np.int64)
        of_length = np.concatenate([value, value], axis=-1)
        for k, (gaps, first, second) in enumerate(self._halves):
            least[..., gaps] = np.minimum(of_length[..., first], of_length[..., second])
            if k + 1 < len(self._halves):  # ranges twice as long are made of two of these
                of_length = np.minimum(of_length[..., : -(1 << k)], of_length[..., 1 << k :])
        return least

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
