"""One plan, two ways to leave: by a copy, or without one and made again.

How much a second of copying costs depends on how busy the lanes are, which nobody knows before all is chosen. So a
price is put on it, both ways are chosen among by that price (``recompute``), the trace in which those are made again
(``rewrite``) is planned like any other (``planner``), and several prices are tried. The fastest plan that the
simulator finds is kept, the one that only copies among them: mixing is never slower.

Covers: the search over prices.
Leaves: all the rest.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

from . import planner
from .errors import InfeasibleError
from .lifetimes import analyze_lifetimes
from .model import Device, Plan, Trace
from .planner import GAIN, Progress, Switches
from .recompute import candidates, choose_ways
from .rewrite import rewrite

__all__ = ["Recompute", "analyze"]

Recompute = Literal["auto", "never"]

_PRICES = (1.0, 0.3, 4.0, 20.0)  # seconds of computing for a second of copying
_MANY = 4000  # operations, from which on there is time for the first price only


def analyze(
    trace: Trace,
    device: Device,
    switches: Switches | None = None,
    progress: Progress | None = None,
    *,
    recompute: Recompute = "never",
) -> Plan:
    """Make a plan.

    Parameters
    ----------
    trace
        One iteration.
    device
        The budget and the speeds.
    switches
        Default: the product's heuristics.
    progress
        Called with what is being done and how much of all is done, 0 to 1.
    recompute
        ``"auto"``: what is cheaper to make again than to copy is; the fastest plan simulated is kept, so that none is
        slower than copying alone. ``"never"``: all that leaves is copied.

    Raises
    ------
    InfeasibleError
        If one operation needs more than the budget.
    """
    if recompute not in get_args(Recompute):
        raise ValueError(f"recompute={recompute!r} is unknown; choose one of {', '.join(get_args(Recompute))}")
    say = progress or (lambda _what, _share: None)
    if recompute == "never" or not len(trace.call_first):
        return planner.analyze(trace, device, switches, say)
    prices = _PRICES if trace.operations < _MANY else _PRICES[:1]
    part = 1 / (1 + len(prices))
    best = planner.analyze(trace, device, switches, lambda what, share: say(what, share * part))
    if best.prediction.step_seconds <= trace.seconds * (1 + GAIN):
        return best
    life = analyze_lifetimes(trace)
    calls, found = candidates(trace, life)
    tried: set[tuple[int, ...]] = {()}
    for k, price in enumerate(prices, start=1):
        ways = choose_ways(trace, life, device, calls, found, price)
        key = tuple(sorted(one.gaps[0] for one, _ in ways))
        if key in tried:
            continue
        tried.add(key)
        again, remaking = rewrite(trace, calls, ways)
        try:
            plan = planner.analyze(again, device, switches, lambda what, share, k=k: say(what, (k + share) * part))  # type: ignore[misc]
        except InfeasibleError:
            continue  # what is needed while one of them is made again does not fit
        if plan.prediction.step_seconds < best.prediction.step_seconds:
            best = replace(plan, remaking=remaking)
    say("done", 1.0)
    return best
