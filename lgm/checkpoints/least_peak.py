"""Which layers of a chain to keep, so that the peak is least when the others are recomputed: optimal checkpoints.

Source: Hong, Tsai, Wang, Liu, Wu, arXiv 2502.12499, and the master's thesis before it. Both of its objectives, each
with a dynamic program of the complexity it gives; the linear program of its authors' code is not what its text says
(it returns more than the least peak on most random chains), and n is at most some hundreds, so that n^2 is free.

A chain is n layers, of which layer k leaves ``size[k]`` behind; as a checkpoint it holds ``held[k]`` of that (in the
paper all of it: the default), and a gradient is as large. The first and the last are kept. Between two
checkpoints i < j that follow each other, the layers are recomputed from i when backward reaches j: while it does, all
of them are held, the largest of the gradients, and that of j.

Covers: the least peak with and without freeing, the checkpoints that reach it, the peak of any choice.
Leaves: finding the chain in a trace, and plans that follow it.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence

import numpy as np

from ..errors import LgmError
from ..records.limits import are_sizes
from ..records.model import Floats

__all__ = ["least_peak", "least_peak_without_freeing", "peak_of", "peak_of_without_freeing"]


Sizes = Sequence[float] | Floats


def _sizes(size: Sizes, held: Sizes | None) -> tuple[Floats, Floats]:
    row = np.asarray(size, dtype=np.float64)
    both = row if held is None else np.asarray(held, dtype=np.float64)
    if not are_sizes(row, both):
        raise LgmError("a chain is a row of sizes, none of them negative")
    return row, both


def _segments(size: Floats, held: Floats, i: int) -> Floats:
    """[n - i - 1] What making layers (i, j] again holds beside checkpoint i and those before it, for each j > i."""
    gradients = held[i + 1 :]
    largest = np.maximum.accumulate(np.maximum(gradients, held[i]))
    return np.cumsum(size[i + 1 :]) + largest + gradients


def peak_of(size: Sizes, checkpoints: Sequence[int], held: Sizes | None = None) -> float:
    """The peak of a choice where backward frees each segment before it makes the one before it again.

    Raises
    ------
    LgmError
        If the first or the last layer is not among the checkpoints, or they are not in order.
    """
    row, held, kept = _checked(size, held, checkpoints)
    if len(row) == 1:
        return float(held[0])
    before = np.cumsum(held[kept])  # checkpoints up to each
    peaks = [before[k] + _segments(row, held, i)[j - i - 1] for k, (i, j) in enumerate(itertools.pairwise(kept))]
    return float(max(*peaks, before[-1]))


def peak_of_without_freeing(size: Sizes, checkpoints: Sequence[int], held: Sizes | None = None) -> float:
    """The same where checkpoints are held to the end of the iteration.

    Raises
    ------
    LgmError
        As :func:`peak_of`.
    """
    row, held, kept = _checked(size, held, checkpoints)
    pairs = itertools.pairwise(kept)
    worst = max((_segments(row, held, i)[j - i - 1] - held[j] for i, j in pairs), default=0.0)
    return float(held[kept].sum() + worst)


def _checked(size: Sizes, held: Sizes | None, checkpoints: Sequence[int]) -> tuple[Floats, Floats, list[int]]:
    (row, both), kept = _sizes(size, held), list(checkpoints)
    if not kept or kept[0] != 0 or kept[-1] != len(row) - 1 or any(a >= b for a, b in itertools.pairwise(kept)):
        raise LgmError("checkpoints are layers in order, the first and the last of the chain among them")
    return row, both, kept


def least_peak(size: Sizes, held: Sizes | None = None) -> tuple[float, list[int]]:
    """The least peak of all choices, and one that has it. Time n^2, of which NumPy does n at once.

    ``least[i]``, of the chain from checkpoint i on: what i holds, and the worse of the segment that follows it and of
    the rest (arXiv 2502.12499, the revised objective: segments are freed from the last to the first).

    Raises
    ------
    LgmError
        If a size is negative or no number.
    """
    row, held = _sizes(size, held)
    n = len(row)
    least, following = np.empty(n), np.zeros(n, dtype=np.int64)
    least[-1] = held[-1]
    for i in range(n - 2, -1, -1):
        worse = np.maximum(least[i + 1 :], _segments(row, held, i))
        best = int(np.argmin(worse))
        least[i], following[i] = held[i] + worse[best], i + 1 + best
    kept = [0]
    while kept[-1] < n - 1:
        kept.append(int(following[kept[-1]]))
    return float(least[0]), kept


def least_peak_without_freeing(size: Sizes, held: Sizes | None = None) -> tuple[float, list[int]]:
    """The least peak where no checkpoint is freed, and a choice that has it. Time n^3.

    For each cost a segment may have at most, of which there are n^2, the least sum of checkpoints: a longer segment
    costs more, so those that may follow each other are windows that only move forward, and the least of a window is at
    the head of a queue (arXiv 2502.12499, the first objective).

    Raises
    ------
    LgmError
        If a size is negative or no number.
    """
    row, held = _sizes(size, held)
    n = len(row)
    if n == 1:
        return float(held[0]), [0]
    cost = np.full((n, n), np.inf)  # of the segment between two checkpoints, beside them
    for i in range(n - 1):
        cost[i, i + 1 :] = _segments(row, held, i) - held[i + 1 :]
    best, choice = np.inf, [0]
    for bound in np.unique(cost[np.isfinite(cost)]):
        total, kept = _least_sum(held, cost, float(bound))
        if total + bound < best:
            best, choice = total + bound, kept
    return float(best), choice


def _least_sum(held: Floats, cost: Floats, bound: float) -> tuple[float, list[int]]:
    """Checkpoints of the least sum, with no segment dearer than `bound`."""
    n = len(held)
    total, before = [float(held[0])] + [np.inf] * (n - 1), [0] * n
    queue, first = deque([0]), 0
    for j in range(1, n):
        while first < j and cost[first, j] > bound:
            first += 1
        while queue and queue[0] < first:
            queue.popleft()
        if not queue:
            return np.inf, []
        before[j] = queue[0]
        total[j] = float(held[j]) + total[queue[0]]
        while queue and total[queue[-1]] >= total[j]:
            queue.pop()
        queue.append(j)
    kept = [n - 1]
    while kept[-1] > 0:
        kept.append(before[kept[-1]])
    return total[-1], kept[::-1]
