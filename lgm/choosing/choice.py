"""Which vTensors are away over which gaps: the least cost that keeps every operation within the budget.

Covers: solving the interval cover of ``problem`` by a sweep and by improving it (``residual``); whole tensors.
Leaves: prices (``cost``) and when copies begin (``timing.schedule``).

The problem: choose 0 <= x[g] <= chunks[g] of least total price so that over every operation at least ``demand``
chunks are away. Columns are gaps and rows operations; a column's ones are consecutive, so on a line the matrix is
totally unimodular and the optimum is an integral network flow: operations are edges of a path, gaps are arcs beside
it, surplus flows back.

- *Sweep*: at each operation with too little away take the gap that ends last (farthest next use: Belady, 1966). With
  equal prices that is optimal on a line; on the circle it is swept until it repeats.
- *Improve*: the sweep's choice is a feasible flow. While its residual network has a negative cycle, send flow along it;
  where none is left the choice is optimal.
"""

from __future__ import annotations

import itertools

import numpy as np

from ..iteration.lifetimes import cover
from ..records.model import Bools, Ints
from .problem import EPSILON, Cover, compress
from .residual import Work, cancel_cycles
from .sweep import prune, sweep

__all__ = ["MUCH", "choose"]

MUCH = 20e6  # for a choice by itself
_FEW, _FEW_PAIRS = 80, 40  # gaps, for which there is time to nudge each, and each pair
_TRIALS = 64  # nudges that are tried side by side


def choose(problem: Cover, *, improve: bool = True, whole: bool = False, work: float = MUCH) -> Ints:
    """[g] Chunks of each gap to use. Pre: the demand can be met.

    Parameters
    ----------
    problem
        Gaps of price 0 are used first, as far as they are needed.
    improve
        Go on from the sweep to the optimum, by about so much `work` (numbers looked at); what is found until then is
        kept.
    whole
        Gaps are used whole or not at all (victims are whole tensors; then the problem is NP-hard, and this the
        sweep's answer).
    """
    if not len(problem.start):
        return np.zeros(0, dtype=np.int64)
    small = compress(problem)
    if not improve or whole:
        return prune(small, sweep(small, whole), whole, free_too=True)
    few = len(small.start) <= _FEW
    # On a circle not every way leads to the optimum; where gaps are few there is time for two.
    starts = [_sweep_by_price(small)] + ([sweep(small, whole)] if few else [])
    left = Work(work)
    ends = [_improve(small, prune(small, used, whole), left, few) for used in starts]
    return prune(small, min(ends, key=small.total), whole, free_too=True)


def _improve(problem: Cover, used: Ints, work: Work, nudging: bool) -> Ints:
    used = cancel_cycles(problem, used, work)
    while nudging and work.left > 0:
        work.turn(len(used) * problem.n)
        nudged = _nudge(problem, used)
        if problem.total(nudged) >= problem.total(used) - EPSILON:
            break
        used = cancel_cycles(problem, nudged, work)
    return used


def _sweep_by_price(problem: Cover) -> Ints:
    """Sweeps over the cheaper half of the gaps, for what those can cover; over all of them for the rest.

    A sweep by itself knows no prices. Where they differ, this is nearer to the optimum: fewer cycles are left.
    """
    n, used = problem.n, np.zeros(len(problem.start), dtype=np.int64)
    for dearest in np.unique(np.quantile(problem.price, (0.5, 1.0))):
        limit = np.where(problem.price <= dearest, problem.limit - used, 0)
        rest = np.minimum(-problem.surplus(used), cover(n, problem.start, problem.stop, limit))
        if (rest > 0).any():
            used = used + sweep(Cover(n, rest, problem.start, problem.stop, limit, problem.price), False)
    return used


def _take_back_each(problem: Cover, used: Ints, surplus: Ints, some: Bools) -> Ints:
    """As `prune` takes back, of t choices side by side: `used` and `some` are [t, g], `surplus` is [t, n]."""
    used, surplus, n = used.copy(), surplus.copy(), problem.n
    some = some & (used > 0)
    asked = np.flatnonzero(some.any(axis=0))
    for g in problem.dearest_first[np.isin(problem.dearest_first, asked)].tolist():
        a, b = int(problem.start[g]), int(problem.stop[g])
        parts = [surplus[:, a:b]] if b <= n else [surplus[:, a:], surplus[:, : b - n]]
        spare = np.minimum.reduce([part.min(axis=1) for part in parts])
        amount = np.where(some[:, g], np.minimum(spare, used[:, g]).clip(0), 0)
        used[:, g] -= amount
        for part in parts:
            np.subtract(part, amount[:, None], out=part)
    return used


def _nudge(problem: Cover, used: Ints) -> Ints:
    """One or two chunks more of one gap or of a pair, for less of others.

    On a circle an integral choice without a cycle that helps may still be one chunk short of the optimum. That matters
    where there are few.
    """
    can = np.flatnonzero((used < problem.limit) & (problem.price > 0)).tolist()
    pairs = list(itertools.combinations(can, 2)) if len(can) <= _FEW_PAIRS else []
    nudges = [(g,) for g in can] + [(g, g) for g in can] + pairs
    more = np.zeros((len(nudges), len(used)), dtype=np.int64)
    for k, gaps in enumerate(nudges):
        for g in gaps:
            more[k, g] = min(more[k, g] + 1, problem.limit[g] - used[g])
    # Most do not pay even if all that they make spare could be taken back at once.
    over = (np.arange(problem.n) - problem.start[:, None]) % problem.n < (problem.stop - problem.start)[:, None]
    # Neither product is BLAS's, whose first call ends the process where memory is limited and taken.
    surplus = problem.surplus(used) + np.einsum("kg,gn->kn", more, over)
    spare = problem.least(surplus)
    worth = np.einsum("kg,g->k", np.where(more > 0, 0, np.minimum(spare, used)) - more, problem.price)
    worthy = np.flatnonzero(worth > EPSILON)
    for some in np.split(worthy, range(_TRIALS, len(worthy), _TRIALS)):
        trials = _take_back_each(problem, used + more[some], surplus[some], (spare[some] > 0) & (problem.price > 0))
        better = [k for k, trial in enumerate(trials) if problem.total(trial) < problem.total(used) - EPSILON]
        if better:
            return np.asarray(trials[better[0]])
    return used
