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

import numpy as np

from . import planner
from .chain import analyze_segments
from .errors import InfeasibleError
from .lifetimes import analyze_lifetimes
from .model import Device, Plan, Trace
from .only import analyze_only
from .planner import GAIN, Progress, Switches
from .recompute import candidates, choose_makings, copying_seconds
from .rewrite import rewrite

__all__ = ["Recompute", "analyze"]

Recompute = Literal["auto", "never", "only", "segments"]

_TRIES = 8  # prices
_EFFORT = 16_000  # operations to plan for, in all of them


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
        slower than copying alone. ``"never"``: all that leaves is copied. ``"only"``: nothing is copied.
        ``"segments"``: parts of the forward pass taken as a chain are run again, in the least time that the budget
        allows (``rotor``), before anything is copied.

    Raises
    ------
    InfeasibleError
        If one operation needs more than the budget; with ``"only"``, if not enough can be made again.
    """
    if recompute not in get_args(Recompute):
        raise ValueError(f"recompute={recompute!r} is unknown; choose one of {', '.join(get_args(Recompute))}")
    say = progress or (lambda _what, _share: None)
    if recompute == "only":
        return analyze_only(trace, device, switches, say)
    if recompute == "segments":
        return analyze_segments(trace, device, switches, say)
    if recompute == "never" or not len(trace.call_first):
        return planner.analyze(trace, device, switches, say)
    part = 1 / (1 + _most_tries(trace))
    best = planner.analyze(trace, device, switches, lambda what, share: say(what, share * part))
    if best.prediction.step_seconds > trace.seconds * (1 + GAIN):
        best = _Search(trace, device, switches, lambda what, share: say(what, part + (1 - part) * share)).better(best)
    say("done", 1.0)
    return best


def _most_tries(trace: Trace) -> int:
    return int(np.clip(_EFFORT // max(trace.operations, 1), 1, _TRIES))


class _Search:
    """For the price at which the simulated step is shortest.

    At each price as many are made again as are cheaper than their copies: prices are tried by their share of all that
    could be, so that neither the device's speeds nor the model's matter.
    """

    def __init__(self, trace: Trace, device: Device, switches: Switches | None, say: Progress) -> None:
        self.trace, self.device, self.switches, self.say = trace, device, switches, say
        self.life = analyze_lifetimes(trace)
        self.calls, self.found = candidates(trace, self.life)
        self.copying = copying_seconds(trace, self.life, device)
        dearness = [one.seconds / (one.chunks * self.copying[list(one.gaps)].mean()) for one in self.found]
        self.prices = np.sort(np.repeat(dearness, [one.chunks for one in self.found])) if self.found else np.zeros(0)
        self.tries = _most_tries(trace)
        self.seconds: dict[float, float] = {}  # of a step, by share
        self.tried: set[tuple[tuple[int, int, int], ...]] = {()}

    def better(self, plan: Plan) -> Plan:
        """The fastest plan found; the given one if none is faster."""
        if not self.found:
            return plan
        shares, width = [0.5, 1.0, 0.25, 0.75], 0.125
        while shares and len(self.seconds) < self.tries:
            share = shares.pop(0)
            self.say("made again", len(self.seconds) / self.tries)
            other = self.plan(share)
            self.seconds[share] = other.prediction.step_seconds if other is not None else np.inf
            if other is not None and other.prediction.step_seconds < plan.prediction.step_seconds:
                plan = other
            if not shares:
                best = min(self.seconds, key=lambda each: self.seconds[each])
                shares = [each for each in (best - width, best + width) if 0 < each < 1 and each not in self.seconds]
                width /= 2
        return plan

    def plan(self, share: float) -> Plan | None:
        """By the price at which such a share could be made again; None if that is like another, or impossible."""
        price = float(self.prices[min(int(share * len(self.prices)), len(self.prices) - 1)]) * (1 + 1e-6)
        makings = choose_makings(self.trace, self.life, self.device, self.calls, self.found, self.copying * price)
        key = tuple((one.tensor, one.start, one.stop) for making in makings for one in making.targets)
        if key in self.tried:
            return None
        self.tried.add(key)
        again, remaking = rewrite(self.trace, self.calls, makings, self.device.switch)
        try:
            return replace(planner.analyze(again, self.device, self.switches), remaking=remaking)
        except InfeasibleError:
            return None  # what is needed while one of them is made again does not fit
