"""When each vTensor has a chunk, in an iteration as the simulator has it.

Covers: the moments at which somebody gets a chunk or gives one up, who is alive and who is away at each; when copies
begin.
Leaves: which chunk it is (``seats``), when copies are asked for (``asking``), the simulator (``timing.simulate``).
"""

from __future__ import annotations

import numpy as np

from ..records.model import Bools, Floats, Ints, Plan
from ..timing.lanes import Timeline
from ..timing.moves import Moves, moves_of_plan
from ..timing.simulate import run_plan

__all__ = ["Stays"]


class Stays:
    """When each vTensor has a chunk, in a simulated iteration, which is cut where somebody gets one or gives one up."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        life, self.moves = moves_of_plan(plan)
        self.gaps = life.gaps
        prediction, self.line = run_plan(plan.trace, plan.device, life, self.moves)
        self.back = _copies_begin(self.line, self.moves)
        self.length = prediction.step_seconds
        self.begin = np.array(self.line.begin)
        self.end = self.begin + plan.trace.op_ns / 1e9
        self._began = np.round(self.begin * 1e9)
        self.away = self._away()
        """(tensor of the plan, chunk of it) -> from when on, and for how long."""
        since = np.array([one for absences in self.away.values() for one in absences]).reshape(-1, 2)
        moments = (self.begin, self.end, since[:, 0], since.sum(axis=1))
        self.cuts = np.unique(self._ns(np.concatenate(moments)))
        self.lasts = np.diff(self.cuts, append=self.cuts[0] + round(self.length * 1e9))
        """[moments] Nanoseconds from each to the next."""

    def _away(self) -> dict[tuple[int, int], list[tuple[float, float]]]:
        trace, gaps, moves = self.plan.trace, self.gaps, self.moves
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

    def during(self, seconds: float) -> int:
        """The row of the plan that is under way then."""
        return int(np.searchsorted(self._began, round(seconds * 1e9), "right")) - 1

    def moments(self, since: float, lasts: float) -> Bools:
        """[moments] Whether each lies within [since, since + lasts)."""
        a, b = (int(x) for x in self._ns(np.array([since, since + lasts])))
        if round(lasts * 1e9) >= round(self.length * 1e9):
            return np.ones(len(self.cuts), dtype=bool)
        if a <= b:
            return np.asarray((self.cuts >= a) & (self.cuts < b))
        return np.asarray((self.cuts >= a) | (self.cuts < b))

    def alive(self, t: int) -> Bools:
        """[moments] Whether a tensor of the plan is."""
        trace = self.plan.trace
        born, died = int(trace.tensor_born[t]), int(trace.tensor_died[t])
        if trace.lasting[t]:
            return np.ones(len(self.cuts), dtype=bool)
        since = float(self.begin[born]) if born >= 0 else 0.0
        until = float(self.end[died]) if died >= 0 else self.length
        return self.moments(since, until - since + (self.length if trace.wraps[t] else 0.0))


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
        for nth in range(min(count, int(moves.in_last[k]) - low)):  # others are of the iteration before
            begins[int(moves.in_gap[k]), low + nth] = begun + (ended - begun) * nth / count
    return begins
