"""What no plan can beat, whatever it copies and whatever it recomputes.

The step is cut into windows of time. A window lasts at least as long as its computing and what is recomputed in it, as
what is copied out in it, and as what is copied in: so at least as long as any mean of the three, with weights that sum
to one. For given weights a chunk that is away costs what the cheapest way to be away costs: left in one window and
brought back in another, or recomputed in one. Which are away is the cover problem (``problem``), of which every price
for each operation (what a chunk less is worth there) gives a lower bound, by the theorem of duality. So every choice of
weights and prices is a bound; good ones are found by going up the gradient.

What is relaxed: chunks leave by parts, copies of a window happen all at once, and to make something again costs its own
call and those of its sources that are certainly gone by then, shared among all that they could recompute.

Covers: that bound. Leaves: bounds for what is only copied (``copies``), plans (``analysis``).
"""

from __future__ import annotations

import numpy as np

from ..choosing.cost import first_of_epoch
from ..iteration.calls import Calls
from ..iteration.lifetimes import Lifetimes, analyze_lifetimes
from ..records.model import Device, Floats, Trace
from ..records.rows import nominal
from ..remaking.recompute import Candidate, candidates

__all__ = ["least_seconds_of_any_mix"]

_WINDOWS = 16
_STEPS = 600


def least_seconds_of_any_mix(trace: Trace, device: Device, *, windows: int = _WINDOWS, steps: int = _STEPS) -> float:
    """Seconds that every step takes, with copies and with what is recomputed.

    Parameters
    ----------
    windows
        More are nearer to the truth, and take longer.
    steps
        Of going up the gradient.
    """
    life = analyze_lifetimes(trace)
    if life.peak <= device.budget_chunks:
        return trace.seconds
    problem = _Problem(trace, device, life, windows)
    prices, logits = _Ascent((problem.rows,), problem.usual / 10), _Ascent((windows, 3), 0.3)
    logits.at[:, 0] = 2.0  # computing first
    best = trace.seconds
    for step in range(1, steps + 1):
        weights = np.exp(logits.at - logits.at.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        value, by_price, by_weight = problem.value(prices.at, weights)
        best = max(best, value)
        pace = 0.02 ** (step / steps)
        prices.go(by_price, step, pace)
        np.maximum(prices.at, 0.0, out=prices.at)
        logits.go(weights * (by_weight - (weights * by_weight).sum(axis=1, keepdims=True)), step, pace)
    return best


class _Ascent:
    """Up a gradient, by Adam (Kingma and Ba, 2015)."""

    def __init__(self, shape: tuple[int, ...], stride: float) -> None:
        self.at, self.mean, self.square = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self.stride = stride

    def go(self, gradient: Floats, step: int, pace: float) -> None:
        self.mean += 0.1 * (gradient - self.mean)
        self.square += 0.01 * (gradient**2 - self.square)
        size = np.sqrt(self.square / (1 - 0.99**step))
        self.at += pace * self.stride * (self.mean / (1 - 0.9**step)) / (size + 1e-12)


class _Problem:
    """The dual function: a bound for given prices and weights, and where it grows."""

    def __init__(self, trace: Trace, device: Device, life: Lifetimes, windows: int) -> None:
        gaps, n, begin = life.gaps, trace.operations, nominal(trace)
        self.windows = windows
        window = np.minimum((begin[:-1] / begin[-1] * windows).astype(np.int64), windows - 1)
        self.computing = np.bincount(window, trace.op_ns / 1e9, windows)
        # Rows: runs of operations of one window between which no gap begins or ends.
        edges = np.unique(np.concatenate([[0], gaps.start, gaps.stop % n, np.flatnonzero(np.diff(window)) + 1]))
        self.rows = len(edges)
        demand = np.zeros(self.rows)
        np.maximum.at(demand, np.searchsorted(edges, np.arange(n), side="right") - 1, life.live - device.budget_chunks)
        self.demand = demand
        # [g, 2 windows] The first row of each gap in each window, and one past the last, on the line of two iterations.
        first = np.searchsorted(edges, gaps.start)
        last = np.searchsorted(edges, gaps.stop % n) + self.rows * (gaps.stop // n)
        begins = np.searchsorted(window[edges], np.arange(windows + 1))
        begins = np.concatenate([begins[:-1], begins + self.rows])
        self.low, self.high = (
            np.clip(side[None, :], first[:, None], last[:, None]) for side in (begins[:-1], begins[1:])
        )
        self.inside = self.high > self.low
        # A copy in for row `stop` may still go on while that row waits, which is in the window that it begins.
        awaits = (begins[:-1] == last[:, None]) & (begins[1:] > begins[:-1])
        self.returns_in = self.inside | awaits
        self.limit = gaps.chunks.astype(np.float64)
        self.out = gaps.bytes / device.out_speed * first_of_epoch(gaps, None)
        self.back = gaps.bytes / device.in_speed * gaps.returns
        self.out_tax, self.in_tax = (device.tax * gaps.bytes * (side > 0) for side in (self.out, self.back))
        self.making = _making_seconds(trace, life)
        self.usual = float(np.median(np.maximum(np.minimum(self.out + self.back, self.making), 1e-9)))

    def value(self, prices: Floats, weights: Floats) -> tuple[float, Floats, Floats]:
        """The bound, and its gradient by prices, [rows], and weights, [windows, 3]: computing, out, in."""
        computing, leaving, coming = (np.concatenate([weights[:, k]] * 2) for k in range(3))
        worth = np.concatenate([[0.0], np.cumsum(np.concatenate([prices, prices]))])  # of all rows before
        # Copied: it leaves in some window, is back in the same or a later one, and is worth the prices between.
        leaves = self.out[:, None] * leaving + self.out_tax[:, None] * computing + worth[self.low]
        leaves = np.where(self.inside, leaves, np.inf)
        ends = self.back[:, None] * coming + self.in_tax[:, None] * computing - worth[self.high]
        copied = np.where(self.returns_in, np.minimum.accumulate(leaves, axis=1) + ends, np.inf)
        # Recomputed in some window, away until then.
        made = self.making[:, None] * computing - worth[self.high] + worth[self.low[:, :1]]
        made = np.where(self.inside, made, np.inf)
        back, again = copied.argmin(axis=1), made.argmin(axis=1)
        each = np.arange(len(back))
        cost_copied, cost_made = copied[each, back], made[each, again]
        cost = np.minimum(np.minimum(cost_copied, cost_made), 0.0)
        value = float(prices @ self.demand + weights[:, 0] @ self.computing + self.limit @ cost)

        covered, by_weight = np.zeros(2 * self.rows + 1), np.zeros((2 * self.windows, 3))
        by_weight[: self.windows, 0] = self.computing
        g = np.flatnonzero((cost < 0) & (cost_copied <= cost_made))
        b, many = back[g], self.limit[g]
        a = np.where(np.arange(leaves.shape[1]) <= b[:, None], leaves[g], np.inf).argmin(axis=1)
        np.add.at(covered, self.low[g, a], many)
        np.add.at(covered, self.high[g, b], -many)
        for window, lane, seconds in ((a, 1, self.out), (a, 0, self.out_tax), (b, 2, self.back), (b, 0, self.in_tax)):
            np.add.at(by_weight, (window, lane), many * seconds[g])
        g = np.flatnonzero((cost < 0) & (cost_made < cost_copied))
        np.add.at(covered, self.low[g, 0], self.limit[g])
        np.add.at(covered, self.high[g, again[g]], -self.limit[g])
        np.add.at(by_weight, (again[g], 0), self.limit[g] * self.making[g])
        away = np.cumsum(covered[:-1])
        by_price = self.demand - away[: self.rows] - away[self.rows :]
        return value, by_price, by_weight[: self.windows] + by_weight[self.windows :]


def _making_seconds(trace: Trace, life: Lifetimes) -> Floats:
    """[g] The least that making a chunk again at the end of each gap can take; infinite where it cannot be."""
    calls, found = candidates(trace, life)
    chains = [_certain(calls, one) for one in found]
    shares: dict[int, dict[tuple[int, int], int]] = {}
    for one, chain in zip(found, chains, strict=True):
        for call in chain:
            shares.setdefault(call, {})[one.tensor, one.content] = one.chunks
    whole = {call: sum(by.values()) for call, by in shares.items()}
    making = np.full(len(life.gaps), np.inf)
    for one, chain in zip(found, chains, strict=True):
        making[list(one.gaps)] = sum(calls.seconds[call] / whole[call] for call in chain)
    return making


def _certain(calls: Calls, one: Candidate) -> set[int]:
    """Calls that must be run to make it again: its own, and those of what is gone by then whatever a plan does."""
    chain: set[int] = set()
    todo = [(one.tensor, one.content)]
    seen = set(todo)
    while todo:
        call = calls.maker.get(todo.pop(), -1)
        if call < 0:
            continue
        chain.add(call)
        for source in calls.reads[call]:
            if source not in seen and not calls.holds(source, one.stop):
                seen.add(source)
                todo.append(source)
    return chain
