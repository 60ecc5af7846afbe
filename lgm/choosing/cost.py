"""What it costs to be away: a price for each gap, and the traffic of a whole choice.

Covers: the two prices as named switches; exact traffic, which is not the sum of prices (see below).
Leaves: which gaps are chosen (``choice``).

A vTensor that was written since it last left must be copied out; in later gaps of the same epoch it leaves for free. So
the price of a gap depends on whether an earlier gap of its epoch is used, and pricing all gaps at once is NP-hard
(writeback-aware caching: Beckmann, Gibbons, Haeupler, McGuffey, 2020). Prices are therefore fixed by assumption, the
choice made, and the assumption renewed with the choice.
"""

from __future__ import annotations

import numpy as np

from ..iteration.lifetimes import Gaps
from ..records.model import Device, Floats, Ints
from ..switches import Costs

__all__ = ["first_of_epoch", "prices", "traffic"]


def prices(gaps: Gaps, device: Device, costs: Costs, used: Ints | None = None) -> Floats:
    """[g] Price of one chunk in each gap.

    ``equal``: 1 for every gap. ``moves``: the time on the lanes, in units of the longest copy in. `used` is the choice
    of the round before: a gap is clean if an earlier one of its epoch was used; without it, if there is an earlier one.
    """
    if costs == "equal" or not len(gaps):
        return np.ones(len(gaps))
    out, back = (gaps.bytes / speed + device.latency for speed in (device.out_speed, device.in_speed))
    return np.asarray((first_of_epoch(gaps, used) * out + gaps.returns * back) / back.max(), dtype=np.float64)


def first_of_epoch(gaps: Gaps, used: Ints | None) -> Ints:
    """[g] 1 where no earlier gap of the epoch (in the order of time on the circle) is used."""
    counted = np.ones(len(gaps), dtype=bool) if used is None else used > 0
    dirty = (gaps.epoch >= 0).astype(np.int64)
    order = np.lexsort((gaps.rank, gaps.epoch))
    epoch = gaps.epoch[order]
    heads = np.ones(len(order), dtype=bool)
    heads[1:] = epoch[1:] != epoch[:-1]
    seen = np.cumsum(counted[order]) - counted[order]  # used gaps before this one, of all epochs
    base = np.repeat(seen[heads], np.diff(np.append(np.flatnonzero(heads), len(order))))
    dirty[order] &= seen == base
    return dirty


def traffic(gaps: Gaps, used: Ints) -> tuple[int, int]:
    """Bytes copied out and copied in, in one iteration, if `used` chunks of each gap (the first of its segment) are
    away.
    """
    size = used * gaps.bytes
    come = int((size * gaps.returns).sum())
    written = gaps.epoch >= 0
    most = np.zeros(int(gaps.epoch.max(initial=-1)) + 1, dtype=np.int64)
    np.maximum.at(most, gaps.epoch[written], size[written])
    return int(most.sum()), come
