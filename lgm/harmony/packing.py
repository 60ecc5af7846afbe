"""Layers in packs, in several ways.

Source: Harmony's scheduler (greedy from the last layer on; balanced memory; balanced time).

Covers: cutting a row of layers so that each pack fits. Leaves: which way is best (``search``).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ..records.model import Floats

__all__ = ["Fits", "Packs", "every_packing", "greedy", "neighbours", "packings"]

Packs = tuple[tuple[int, int], ...]
"""First layer, and the one after the last, of each."""
Fits = Callable[[int, int], bool]


def packings(sizes: Sequence[Floats], fits: Fits, n: int) -> set[Packs]:
    """The first n layers in packs: as many in each as fit, and in so many packs of about the same of each size.

    Harmony takes the fewest packs that fit. But packs that share devices need more of them, and of larger packs less
    can be done while they come: more are tried, too.
    """
    found = {greedy(fits, n)}
    for size in sizes:
        fewest = next(filter(None, (_balanced(size, fits, n, count) for count in range(1, n + 1))), None)
        if fewest is not None:
            more = (count for count in _counts(n) if count > len(fewest))
            found |= {fewest, *(_balanced(size, fits, n, count) for count in more)}
    return {packs for packs in found if packs is not None}


def every_packing(fits: Fits, n: int) -> set[Packs]:
    """The first n layers in packs in every way there is: up to 2^(n - 1)."""
    found: set[Packs] = set()
    for cuts in itertools.chain.from_iterable(itertools.combinations(range(1, n), k) for k in range(n)):
        packs = _between([0, *cuts, n])
        if all(fits(a, b) for a, b in packs):
            found.add(packs)
    return found


def neighbours(packs: Packs) -> Iterator[Packs]:
    """One cut moved by a layer, taken away, or put in the middle of a pack."""
    n = packs[-1][1]
    cuts = [start for start, _ in packs[1:]]
    for k, cut in enumerate(cuts):
        others = cuts[:k] + cuts[k + 1 :]
        yield _between([0, *others, n])
        for moved in (cut - 1, cut + 1):
            if 0 < moved < n and moved not in others:
                yield _between([0, *sorted([*others, moved]), n])
    for start, stop in packs:
        if stop - start > 1:
            yield _between([0, *sorted([*cuts, (start + stop) // 2]), n])


def _counts(n: int) -> list[int]:
    """1 to 4, and from there on in steps of about a half."""
    counts = [1, 2, 3, 4]
    while counts[-1] < n:
        counts.append(min(counts[-1] * 3 // 2, n))
    return [count for count in counts if count <= n]


def greedy(fits: Fits, n: int) -> Packs | None:
    """From the last layer on; what is left over is the first pack. None if a layer does not fit."""
    cuts, stop = [n], n
    while stop > 0:
        start = stop
        while start > 0 and fits(start - 1, stop):
            start -= 1
        if start == stop:
            return None
        cuts.append(start)
        stop = start
    return _between(cuts[::-1])


def _balanced(size: Floats, fits: Fits, n: int, count: int) -> Packs | None:
    upto = np.cumsum(size)
    at = np.searchsorted(upto, upto[-1] * np.arange(1, count) / count)
    ends = np.clip(at, np.arange(1, count), n - np.arange(count - 1, 0, -1))  # none of them empty
    packs = _between([0, *np.maximum.accumulate(ends).tolist(), n])
    return packs if all(a < b and fits(a, b) for a, b in packs) else None


def _between(cuts: Sequence[int]) -> Packs:
    return tuple(itertools.pairwise(cuts))
