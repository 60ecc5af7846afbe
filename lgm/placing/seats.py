"""Which physical chunk each vTensor has, all its life and in every iteration: no address need be led elsewhere then.

On a GPU leading an address to another chunk takes as long as a kernel (on an H100 28 us to map and 17 to unmap each
chunk, and about 80 for each call while copies go on), while addresses are plentiful: many may lead to one chunk. A
vTensor that finds its own chunk free whenever it is born or comes back need not be mapped at all. So chunks are given
out like registers: who is there at the same time has different ones, who is not may share one. On a line intervals can
always be coloured so; on a circle, for lives of several stays, they cannot, but the longest first, each in the first
chunk that is free for all of its stays, leaves hardly any without, if a few chunks more are there than the plan uses.
(The longest in time: by the number of its moments 138 of 7,422 vTensors of a BERT on an H100 had none.)

A plan asks for a copy in as early as it may begin, and the lane makes it wait for others. The host, which is ahead of
the device, would then take the chunk before whoever sits there is gone. So each chunk is asked for with the operation
during which its copy begins: the seat is free by then, and the device does the same at the same time.

Covers: the stays of every vTensor as the simulator has them, a chunk for each that has one free throughout, and with
which operation each comes back.
Leaves: what happens where time passes otherwise (``kernels/iteration/seating.h``: a seat is a wish).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..iteration.lifetimes import Gaps, analyze_lifetimes
from ..records.model import Bools, Floats, Ints, Plan, Trace
from ..timing.lanes import Timeline
from ..timing.prefetch import Arrivals
from ..timing.schedule import Moves, moves_of_plan
from ..timing.simulate import run_plan

__all__ = ["Seats", "seats", "to_spare"]

# Of a budget. On iterations of an H100 at half of their peak without any up to 3 % of the vTensors had no seat, and
# each of them made ten others move; plans for so much less foresee steps a thousandth longer.
_SPARE = 0.03

# Of the vTensors: each takes the seat of another, which has to look for another in its turn.
_WITHOUT = 0.05


class Seats(NamedTuple):
    """Of the iteration as recorded."""

    first: Ints
    """[m + 1] Where the vTensors of each recorded tensor begin."""
    chunk: Ints
    """[first[m]] Numbers below the budget's chunks, the lowest the busiest; -1 for what found none free throughout.
    Where many found none, nobody has one: they would sit on the others'."""
    arrivals: Arrivals
    """The plan's copies in, each asked for when its seat is free; tensors and rows of the plan's trace."""


def to_spare(trace: Trace, budget_chunks: int) -> int:
    """Chunks that a plan for a device with seats should not use.

    Few, none that an operation needs, and none without which something had to leave where all fits.
    """
    life = analyze_lifetimes(trace)
    needed = life.peak if life.peak <= budget_chunks else int(life.needed.max(initial=0))
    return max(min(math.ceil(_SPARE * budget_chunks), budget_chunks - needed), 0)


def seats(plan: Plan, budget_chunks: int | None = None) -> Seats:
    """A chunk for each vTensor. Time grows as tensors x chunks x operations / 64.

    What is dropped and made again has one for both of its lives: it keeps its address.

    Parameters
    ----------
    budget_chunks
        Chunks there are; default: those the plan was made for.
    """
    stays = _Stays(plan)
    first = np.concatenate([[0], np.cumsum(plan.recorded.chunks)])
    there = plan.device.budget_chunks if budget_chunks is None else budget_chunks
    longest_first = sorted(_alike(stays), key=lambda one: -int(stays.lasts[one[2]].sum()))
    made = _made_by_the_way(stays)
    best = _give(longest_first, first, there, 0, made)
    while best.aside < best.most_elsewhere < there:
        given = _give(longest_first, first, there, best.most_elsewhere, made)
        if given.misfits >= best.misfits:
            break
        best = given
    chunk = best.chunk
    if best.without > _WITHOUT * len(chunk):
        chunk[:] = -1
    return Seats(first, chunk, stays.arrivals())


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


def _give(alike: list[tuple[int, Ints, Bools]], first: Ints, there: int, aside: int, elsewhere: Ints) -> _Given:
    """In this order, each the first chunk that is free throughout. `elsewhere` [moments] is who never has one."""
    chunk = np.full(int(first[-1]), -1, dtype=np.int64)
    elsewhere, without = elsewhere.copy(), 0
    taken = np.zeros((there - aside, len(_packed(alike[0][2])) if alike else 0), dtype=np.uint64)
    for t, which, present in alike:
        packed = _packed(present)
        if packed.any():
            free = np.flatnonzero(~(taken & packed).any(axis=1))[: len(which)]
            chunk[first[t] + which[: len(free)]] = free
            taken[free] |= packed
            elsewhere += present * (len(which) - len(free))
            without += len(which) - len(free)
    return _Given(chunk, aside, without, int(elsewhere.max(initial=0)))


def _made_by_the_way(stays: _Stays) -> Ints:
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


class _Stays:
    """When each vTensor has a chunk, in a simulated iteration, which is cut where somebody gets one or gives one up."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        life, self.moves = moves_of_plan(plan)
        prediction, self.line = run_plan(plan.trace, plan.device, life, self.moves)
        self.back = _copies_begin(self.line, self.moves)
        self.length = prediction.step_seconds
        self.begin = np.array(self.line.begin)
        self.end = self.begin + plan.trace.op_ns / 1e9
        self.away = self._away(life.gaps)
        """(tensor of the plan, chunk of it) -> from when on, and for how long."""
        since = np.array([one for absences in self.away.values() for one in absences]).reshape(-1, 2)
        moments = (self.begin, self.end, since[:, 0], since.sum(axis=1))
        self.cuts = np.unique(self._ns(np.concatenate(moments)))
        self.lasts = np.diff(self.cuts, append=self.cuts[0] + round(self.length * 1e9))
        """[moments] Nanoseconds from each to the next."""

    def _away(self, gaps: Gaps) -> dict[tuple[int, int], list[tuple[float, float]]]:
        trace, moves = self.plan.trace, self.moves
        away: dict[tuple[int, int], list[tuple[float, float]]] = {}
        left, back = _copies_end(self.line, moves), self.back
        asked = self.begin - np.array(self.line.wait)
        for k, g in enumerate(moves.out_gap.tolist()):
            t, stop = int(gaps.tensor[g]), int(gaps.stop[g])
            leaves = float(asked[moves.out_op[k]])
            until = float(self.begin[stop % len(asked)] if gaps.returns[g] else self.end[(stop - 1) % len(asked)])
            most = (until - leaves) % self.length
            for c in range(int(moves.out_first[k]), int(moves.out_last[k])):
                since = left.get((k, c), leaves)
                lasts = (back.get((g, c), until) - since) % self.length
                if not gaps.returns[g] and trace.lasting[t]:
                    since, lasts = 0.0, self.length  # it leaves once, for good
                if lasts <= most + 1e-9:  # else it comes back before it has left
                    away.setdefault((t, c), []).append((since, lasts))
        return away

    def _ns(self, seconds: Floats) -> Ints:
        return np.asarray(np.round(seconds * 1e9), dtype=np.int64) % round(self.length * 1e9)

    def moments(self, since: float, lasts: float) -> Bools:
        """[moments] Whether each lies within [since, since + lasts)."""
        a, b = (int(x) for x in self._ns(np.array([since, since + lasts])))
        if round(lasts * 1e9) >= round(self.length * 1e9):
            return np.ones(len(self.cuts), dtype=bool)
        if a <= b:
            return np.asarray((self.cuts >= a) & (self.cuts < b))
        return np.asarray((self.cuts >= a) | (self.cuts < b))

    def arrivals(self) -> Arrivals:
        """Those of the plan, each asked for with the operation during which its copy begins."""
        moves, began = self.moves, np.round(self.begin * 1e9)
        asked: list[tuple[int, float, int, int, int]] = []  # row, seconds, tensor, first, last
        for k, g in enumerate(moves.in_gap.tolist()):
            earliest, need = int(moves.in_op[k]), int(moves.in_need[k])
            latest = need if earliest <= need else len(began) - 1
            for c in range(int(moves.in_first[k]), int(moves.in_last[k])):
                at, row = self.back.get((g, c), math.inf), earliest
                if at < math.inf:  # else it waits across the turn, and is asked for as planned
                    during = int(np.searchsorted(began, round(at * 1e9), "right")) - 1
                    row = min(max(during, earliest), latest)
                if asked and asked[-1][0] == row and asked[-1][2:] == (int(self.plan.in_tensor[k]), asked[-1][3], c):
                    asked[-1] = (*asked[-1][:4], c + 1)
                else:
                    asked.append((row, at, int(self.plan.in_tensor[k]), c, c + 1))
        asked.sort()
        rows = np.array([(row, *rest) for row, _, *rest in asked], dtype=np.int64).reshape(-1, 4)
        return Arrivals(rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3])

    def alive(self, t: int) -> Bools:
        """[moments] Whether a tensor of the plan is."""
        trace = self.plan.trace
        born, died = int(trace.tensor_born[t]), int(trace.tensor_died[t])
        if trace.lasting[t]:
            return np.ones(len(self.cuts), dtype=bool)
        since = float(self.begin[born]) if born >= 0 else 0.0
        until = float(self.end[died]) if died >= 0 else self.length
        return self.moments(since, until - since + (self.length if trace.wraps[t] else 0.0))


def _alike(stays: _Stays) -> list[tuple[int, Ints, Bools]]:
    """Recorded tensors, those of their vTensors that have chunks at the same moments, and at which."""
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


def _copies_end(line: Timeline, moves: Moves) -> dict[tuple[int, int], float]:
    """(row of a move out, chunk) -> seconds; nothing for what leaves without a copy."""
    ends = {}
    for begun, ended, k, count in line.out:
        for nth in range(count):
            ends[k, int(moves.out_first[k]) + nth] = begun + (ended - begun) * (nth + 1) / count
    return ends


def _copies_begin(line: Timeline, moves: Moves) -> dict[tuple[int, int], float]:
    """(gap, chunk) -> seconds."""
    begins = {}
    reached: dict[int, int] = {}
    for begun, ended, k, count in line.back:
        low = reached.get(k, int(moves.in_first[k]))
        reached[k] = low + count
        for nth in range(count):
            begins[int(moves.in_gap[k]), low + nth] = begun + (ended - begun) * nth / count
    return begins
