"""Which physical chunk each vTensor has, all its life and in every iteration: no address need be led elsewhere then.

On a GPU leading an address to another chunk takes as long as a kernel (on an H100 28 us to map and 17 to unmap each
chunk, and about 80 for each call while copies go on), while addresses are plentiful: many may lead to one chunk. A
vTensor that finds its own chunk free whenever it is born or comes back need not be mapped at all. So chunks are given
out like registers: who is there at the same time has different ones, who is not may share one. On a line intervals can
always be coloured so; on a circle, for lives of several stays, they cannot, but the longest first, each in the first
chunk that is free for all of its stays, leaves hardly any without, if a few chunks more are there than the plan uses.
(The longest in time: by the number of its moments 138 of 7,422 vTensors of a BERT on an H100 had none.) Those few go
first in the next round, and what they are in the way of finds another chunk.

Covers: a chunk for each vTensor that has one free throughout.
Leaves: the stays of each (``stays``), when copies are asked for (``asking``), what happens where time passes otherwise
(``kernels/iteration/seating.h``: a seat is a wish).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..iteration.lifetimes import analyze_lifetimes
from ..records.copies import Copies
from ..records.model import Bools, Ints, Plan, Trace
from .asking import arrivals, departures
from .stays import Stays

__all__ = ["Seats", "seats", "to_spare"]

# Of a budget. On iterations of an H100 at half of their peak without any up to 3 % of the vTensors had no seat, and
# each of them made ten others move; plans for so much less foresee steps a thousandth longer.
_SPARE = 0.03

_AT_ONCE = 64  # chunks that are looked at

# Rounds without gain, in which those go first that found none the round before: what is awkward is best served while
# all is free.
_IN_VAIN = 3

# Of the vTensors: each takes the seat of another, which has to look for another in its turn.
_WITHOUT = 0.05


class Seats(NamedTuple):
    """Of the iteration as recorded."""

    first: Ints
    """[m + 1] Where the vTensors of each recorded tensor begin."""
    chunk: Ints
    """[first[m]] Numbers below the budget's chunks, the lowest the busiest; -1 for what found none free throughout.
    Where many found none, nobody has one: they would sit on the others'."""
    departures: Copies
    """The plan's copies, each asked for when it begins; tensors and rows of the plan's trace."""
    arrivals: Copies


def to_spare(trace: Trace, budget_chunks: int) -> int:
    """Chunks that a plan for a device with seats should not use.

    Few, none that an operation needs, and none without which something had to leave where all fits.
    """
    life = analyze_lifetimes(trace)
    needed = life.peak if life.peak <= budget_chunks else int(life.needed.max(initial=0))
    return max(min(math.ceil(_SPARE * budget_chunks), budget_chunks - needed), 0)


def seats(plan: Plan, budget_chunks: int | None = None) -> Seats:
    """A chunk for each vTensor. Time grows as tensors x chunks x operations / 64: 0.2 seconds for 2,400 vTensors
    in 1,300 rows, 3 for 9,000 in 2,300; as much for each round.

    What is dropped and recomputed has one for both of its lives: it keeps its address.

    Parameters
    ----------
    budget_chunks
        Chunks there are; default: those the plan was made for.
    """
    stays = Stays(plan)
    first = np.concatenate([[0], np.cumsum(plan.recorded.chunks)])
    there = plan.device.budget_chunks if budget_chunks is None else budget_chunks
    order = sorted(_alike(stays), key=lambda one: -int(stays.lasts[one[2]].sum()))
    made = _made_by_the_way(stays)
    best = given = _give(order, first, there, 0, made)
    best_order, in_vain = order, 0
    while in_vain < _IN_VAIN and 0 < given.without <= _WITHOUT * len(given.chunk):
        order = _before_others(order, first, given.chunk < 0)
        given = _give(order, first, there, 0, made)
        in_vain += 1
        if given.misfits < best.misfits:
            best, best_order, in_vain = given, order, 0
    while best.aside < best.most_elsewhere < there:
        given = _give(best_order, first, there, best.most_elsewhere, made)
        if given.misfits >= best.misfits:
            break
        best = given
    chunk = best.chunk
    if best.without > _WITHOUT * len(chunk):
        chunk[:] = -1
    back = arrivals(stays)
    return Seats(first, chunk, departures(stays, back), back)


_Alike = tuple[int, Ints, Bools]
"""A recorded tensor, those of its vTensors that have chunks at the same moments, and at which."""


class _Given(NamedTuple):
    chunk: Ints
    aside: int
    """Chunks that are nobody's seat: what has none sits there, and elsewhere on another's."""
    without: int
    """Of those that need one at all."""
    most_elsewhere: int
    """Chunks that what has no seat takes at most."""

    @property
    def misfits(self) -> int:
        return self.without + max(self.most_elsewhere - self.aside, 0)


def _give(alike: list[_Alike], first: Ints, there: int, aside: int, elsewhere: Ints) -> _Given:
    """In this order, each the first chunk that is free throughout. `elsewhere` [moments] is who never has one."""
    chunk = np.full(int(first[-1]), -1, dtype=np.int64)
    elsewhere, without = elsewhere.copy(), 0
    taken = np.zeros((len(_packed(alike[0][2])) if alike else 0, there - aside), dtype=np.uint64)
    for t, which, present in alike:
        packed = _packed(present)
        if packed.any():
            free = _first_free(taken, packed, len(which))
            chunk[first[t] + which[: len(free)]] = free
            taken[:, free] |= packed[:, None]
            elsewhere += present * (len(which) - len(free))
            without += len(which) - len(free)
    return _Given(chunk, aside, without, int(elsewhere.max(initial=0)))


def _before_others(order: list[_Alike], first: Ints, those: Bools) -> list[_Alike]:
    """`those` [vTensors] come first, all else stays in this order."""
    parts = [(t, which, present, those[first[t] + which]) for t, which, present in order]
    kept = [(t, which[~now], present) for t, which, present, now in parts if not now.all()]
    return [(t, which[now], present) for t, which, present, now in parts if now.any()] + kept


def _first_free(taken: NDArray[np.uint64], packed: NDArray[np.uint64], count: int) -> Ints:
    """The first `count` chunks, or fewer, that nobody has at these moments."""
    words = np.flatnonzero(packed)
    likely = np.arange(taken.shape[1])
    for word in words[[0, len(words) // 2, -1]].tolist():  # most that are not free are told by these
        likely = likely[(taken[word, likely] & packed[word]) == 0]
    found: list[Ints] = []
    for begin in range(0, len(likely), _AT_ONCE):
        some = likely[begin : begin + _AT_ONCE]
        free = some[~(taken[words[:, None], some] & packed[words, None]).any(axis=0)]
        found.append(free[:count])
        count -= len(found[-1])
        if count == 0:
            break
    return np.concatenate(found) if found else likely


def _made_by_the_way(stays: Stays) -> Ints:
    """[moments] Chunks of what is made only to make something else again: nobody says where that is to be."""
    plan = stays.plan
    chunks = np.zeros(len(stays.cuts), dtype=np.int64)
    for t in [] if plan.remaking is None else np.flatnonzero(plan.remaking.tensor < 0).tolist():
        chunks += stays.alive(t) * int(plan.trace.chunks[t])
    return chunks


def _packed(moments: Bools) -> NDArray[np.uint64]:
    """64 of them in a number."""
    bits = np.packbits(moments)
    return np.pad(bits, (0, -len(bits) % 8)).view(np.uint64)


def _alike(stays: Stays) -> list[_Alike]:
    plan = stays.plan
    trace = plan.trace
    of = np.arange(trace.tensors) if plan.remaking is None else plan.remaking.tensor
    moving = {int(of[t]) for t, _ in stays.away}
    here: dict[tuple[int, int], Bools] = {}  # (recorded tensor, vTensor of it); one for all where none of it moves
    for t in np.flatnonzero(of >= 0).tolist():
        alive = stays.alive(t)
        for c in range(int(trace.chunks[t]) if int(of[t]) in moving else 1):
            present = alive.copy()
            for since, lasts in stays.away.get((t, c), ()):
                present &= ~stays.moments(since, lasts)
            here[int(of[t]), c] = here[int(of[t]), c] | present if (int(of[t]), c) in here else present
    found: dict[tuple[int, bytes], list[int]] = {}
    for (t, c), present in here.items():
        found.setdefault((t, present.tobytes()), []).append(c)
    return [
        (t, np.array(which) if t in moving else np.arange(plan.recorded.chunks[t]), np.frombuffer(present, dtype=bool))
        for (t, present), which in found.items()
    ]
