"""Layers in packs: as few as fit, as even as can be.

Covers: cutting a row of sizes. Leaves: what the sizes are (``packing``).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

__all__ = ["COPIES", "cut_evenly", "pack"]

COPIES = 4  # what a weight takes, times its bytes, until states can be measured: itself, its gradient, two states


def pack(sizes: Sequence[float], limit: float) -> list[range]:
    """As few runs of neighbours as have a sum of at most `limit` each; of these cuts, one whose largest sum is least.

    A layer that is larger than the limit is a pack by itself.
    """
    return cut_evenly(sizes, _count(sizes, limit))


def cut_evenly(sizes: Sequence[float], count: int) -> list[range]:
    """So many runs of neighbours, if there are as many, such that the largest sum is least. Pre: count > 0."""
    before = [0.0, *itertools.accumulate(sizes)]
    sums = sorted({j - i for i, j in itertools.combinations(before, 2)})
    low, high = 0, len(sums) - 1  # the least limit for which there are no more than `count`
    while low < high:
        middle = (low + high) // 2
        if max(sizes) <= sums[middle] and _count(sizes, sums[middle]) <= count:
            high = middle
        else:
            low = middle + 1
    runs = _runs(sizes, sums[high])
    while len(runs) < min(count, len(sizes)):
        largest = max((run for run in runs if len(run) > 1), key=lambda run: sum(sizes[k] for k in run))
        at = min(largest[1:], key=lambda k: abs(sum(sizes[largest.start : k]) - sum(sizes[k : largest.stop])))
        place = runs.index(largest)
        runs[place : place + 1] = [range(largest.start, at), range(at, largest.stop)]
    return runs


def _runs(sizes: Sequence[float], limit: float) -> list[range]:
    runs, first, total = [], 0, 0.0
    for k, size in enumerate(sizes):
        if k > first and total + size > limit:
            runs.append(range(first, k))
            first, total = k, 0.0
        total += size
    return [*runs, range(first, len(sizes))]


def _count(sizes: Sequence[float], limit: float) -> int:
    return len(_runs(sizes, limit))
