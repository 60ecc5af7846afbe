"""From a trace and a device to a plan.

Covers: the order of the steps, the reservation, the named switches.
Leaves: each step to its module. Read this first: ``lifetimes`` -> ``cost`` -> ``choice`` -> ``schedule`` <->
``simulate`` (`settle`) -> ``mapping``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Literal, get_args

import numpy as np

from .bounds import check_feasible
from .choice import choose
from .cost import Costs, prices, traffic
from .lifetimes import Lifetimes, analyze_lifetimes
from .mapping import ranges_to_keep
from .model import Device, Floats, Ints, Plan, Prediction, Trace
from .problem import Cover
from .schedule import Moves, Timing, nominal, schedule
from .simulate import run_plan

__all__ = ["Switches", "analyze", "demand", "select", "settle"]

Progress = Callable[[str, float], None]

_EFFORT = 160_000  # operations to simulate in an analysis, more or less: its time stays below 3 s for 20,000
_ROUNDS = 6
_GAIN = 0.002  # of a step: less is not worth another round
_HASTES = (1.0, 0.92)


@dataclass(frozen=True, slots=True)
class Switches:
    """The heuristics by name; the defaults are the product's, the others are baselines and for ablation."""

    costs: Costs = "moves"
    choice: Literal["optimal", "sweep"] = "optimal"
    granularity: Literal["chunk", "tensor"] = "chunk"
    timing: Timing = "packed"
    reservation: Literal["auto", "none"] = "auto"
    mapping: Literal["keep", "none"] = "keep"
    settling: Literal["simulated", "none"] = "simulated"

    def __post_init__(self) -> None:
        allowed = {
            "costs": get_args(Costs),
            "choice": ("optimal", "sweep"),
            "granularity": ("chunk", "tensor"),
            "timing": get_args(Timing),
            "reservation": ("auto", "none"),
            "mapping": ("keep", "none"),
            "settling": ("simulated", "none"),
        }
        for name, names in allowed.items():
            if getattr(self, name) not in names:
                raise ValueError(f"{name}={getattr(self, name)!r} is unknown; choose one of {', '.join(names)}")

    def as_dict(self) -> dict[str, str]:
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True, slots=True)
class _Effort:
    """How often a trace may be simulated."""

    reserving: int
    """Rounds of settling for each reservation that is tried."""
    rounds: int
    """And for the final choice."""
    thorough: bool
    """Whether there is time for a second choice and a second haste."""


def _effort(trace: Trace, switches: Switches) -> _Effort:
    if switches.settling == "none":
        return _Effort(1, 1, thorough=False)
    n = trace.operations
    rounds = max(1, min(_ROUNDS, _EFFORT // (4 * n)))
    return _Effort(3 if 40 * n < _EFFORT else 1, rounds, thorough=rounds == _ROUNDS)


def demand(life: Lifetimes, device: Device, reservation: int) -> Ints:
    """[n] Chunks that must be away. Where one operation needs nearly all, the reservation shrinks for it."""
    room = np.maximum(device.budget_chunks - reservation, np.minimum(life.needed, device.budget_chunks))
    return life.live - room


def select(life: Lifetimes, device: Device, switches: Switches, reservation: int, *, improve: bool) -> Ints:
    """[g] Chunks of each gap that are away."""
    gaps = life.gaps
    whole = switches.granularity == "tensor"
    wanted = demand(life, device, reservation)

    def choice(price: Floats) -> Ints:
        return choose(
            Cover(len(wanted), wanted, gaps.start, gaps.stop, gaps.chunks, price), improve=improve, whole=whole
        )

    def seconds(used: Ints) -> float:
        out, back = traffic(gaps, used)
        return out / device.out_speed + back / device.in_speed

    assumed = prices(gaps, device, switches.costs)
    used = choice(assumed)
    if not improve:
        return used
    actual = prices(gaps, device, switches.costs, used)
    if np.array_equal(actual, assumed):
        return used
    return min(used, choice(actual), key=seconds)


def settle(
    trace: Trace,
    device: Device,
    life: Lifetimes,
    switches: Switches,
    used: Ints,
    rounds: int,
    hastes: tuple[float, ...] = _HASTES[:1],
) -> tuple[Moves, Prediction]:
    """Schedule a choice by the times of the simulation before, until that gains nothing; the fastest is kept.

    `hastes` says how much of each simulated wait deadlines keep: one that keeps its whole wait has no reason to move,
    but without whole waits some plans find no rest. Each is tried from the beginning.
    """
    unhurried = nominal(trace)
    best: tuple[Moves, Prediction] | None = None
    for haste in hastes:
        begin, worse = unhurried, 0
        for _ in range(rounds):
            moves = schedule(trace, device, life, used, begin=begin, timing=switches.timing)
            prediction, line = run_plan(trace, device, life, moves)
            if best is None or prediction.step_seconds < best[1].step_seconds * (1 - _GAIN):
                best, worse = (moves, prediction), 0
            else:
                worse += 1
            if prediction.waits_seconds < _GAIN * prediction.step_seconds or switches.timing == "on_demand":
                return best
            if worse == 3:
                break
            waited = np.append(line.begin, prediction.step_seconds) - unhurried
            begin = np.maximum.accumulate(unhurried + haste * waited)
    assert best is not None
    return best


def analyze(trace: Trace, device: Device, switches: Switches | None = None, progress: Progress | None = None) -> Plan:
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

    Raises
    ------
    InfeasibleError
        If one operation needs more than the budget.
    """
    switches = switches or Switches()
    say = progress or (lambda _what, _share: None)
    say("lifetimes", 0.0)
    life = analyze_lifetimes(trace)
    check_feasible(trace, device, life)
    effort = _effort(trace, switches)
    reservation = 0
    if switches.reservation == "auto":
        say("reservation", 0.1)
        reservation = _reserve(trace, device, life, switches, effort.reserving, say)
    say("choice", 0.6)
    hastes = _HASTES if effort.thorough else _HASTES[:1]
    found = []
    for k, used in enumerate(_choices(life, device, switches, reservation, effort.thorough)):
        say("schedule", 0.7 + 0.1 * k)
        found.append(settle(trace, device, life, switches, used, effort.rounds, hastes))
    moves, prediction = min(found, key=lambda each: each[1].step_seconds)
    say("mapping", 0.95)
    keep = np.ones(trace.tensors, dtype=np.int64)
    if switches.mapping == "keep":
        keep = ranges_to_keep(trace, device, life, moves)
    say("done", 1.0)
    return _plan(trace, device, life, moves, reservation, keep, prediction, switches)


def _choices(life: Lifetimes, device: Device, switches: Switches, reservation: int, thorough: bool) -> list[Ints]:
    """The choice of least traffic; and if there is time for two, what it was improved from, unless that has more than
    one percent more.
    """
    if switches.choice == "sweep" or switches.granularity == "tensor":
        return [select(life, device, switches, reservation, improve=False)]
    choices = [select(life, device, switches, reservation, improve=True)]
    if thorough:
        swept = select(life, device, switches, reservation, improve=False)
        if sum(traffic(life.gaps, swept)) <= 1.01 * sum(traffic(life.gaps, choices[0])):
            choices.append(swept)
    return choices


def _reserve(trace: Trace, device: Device, life: Lifetimes, switches: Switches, rounds: int, say: Progress) -> int:
    """The reservation whose simulated step is shortest; the smallest among equals."""
    if life.peak <= device.budget_chunks:
        return 0
    best, least, worse = 0, np.inf, 0
    candidates = [0] + [c for c in (2, 8, 32, 128, 512) if c <= device.budget_chunks // 3]
    for k, reservation in enumerate(candidates):
        used = select(life, device, switches, reservation, improve=False)
        predicted = settle(trace, device, life, switches, used, rounds)[1]
        seconds = predicted.step_seconds
        say("reservation", 0.1 + 0.5 * (k + 1) / len(candidates))
        if seconds < least * (1 - _GAIN):
            best, least, worse = reservation, seconds, 0
        else:
            worse += 1
        if worse == 2 or predicted.waits_seconds < _GAIN * seconds:
            break
    return best


def _plan(
    trace: Trace,
    device: Device,
    life: Lifetimes,
    moves: Moves,
    reservation: int,
    keep: Ints,
    prediction: Prediction,
    switches: Switches,
) -> Plan:
    tensor = life.gaps.tensor
    return Plan(
        trace=trace,
        device=device,
        reservation=reservation,
        out_op=moves.out_op,
        out_tensor=tensor[moves.out_gap],
        out_first=moves.out_first,
        out_last=moves.out_last,
        in_op=moves.in_op,
        in_tensor=tensor[moves.in_gap],
        in_first=moves.in_first,
        in_last=moves.in_last,
        in_need=moves.in_need,
        keep=keep,
        prediction=prediction,
        switches=switches.as_dict(),
    )
