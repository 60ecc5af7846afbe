"""From a trace and a device to a plan.

Covers: the order of the steps, the reservation, how much is tried.
Leaves: each step to its module. Read this first: ``iteration.lifetimes`` -> ``choosing.cost`` -> ``choosing.selection``
-> ``timing.schedule`` <-> ``timing.simulate`` (``timing.settling``) -> ``placing.mapping``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..choosing.selection import lateness, select
from ..iteration.lifetimes import Lifetimes, analyze_lifetimes
from ..iteration.needs import check_feasible
from ..placing.mapping import ranges_to_keep
from ..progress import Progress, silent
from ..records.model import Device, Ints, Plan, Prediction, Trace
from ..switches import Switches, Timing
from ..timing.moves import Moves
from ..timing.settling import GAIN, HASTES, ROUNDS, settle, work_of_round

__all__ = ["analyze", "drafts_are_plans", "finished"]


_EFFORT = 160_000  # operations to simulate in an analysis, more or less: its time stays below 3 s for 20,000
_SMALL = 4_000  # operations: there is time for all
_USUAL = 3  # times the work of an operation that moves nothing: what an operation of most programs takes
_WHILE_RESERVING, _DRAFTING = 2e6, 6e5  # work for improving a choice that only shows what something is worth
_IMPROVING = (8e6, 4e6)  # and the final one, where there is time and where there is little


@dataclass(frozen=True, slots=True)
class _Effort:
    """How often a trace may be simulated."""

    reserving: int
    """Rounds of settling for each reservation that is tried."""
    rounds: int
    """And for the final choice."""
    thorough: bool
    """Whether there is time for a second choice, timing and haste, and for improving the choice of each reservation."""
    while_reserving: float
    """Work for improving the choice of each reservation."""
    improving: float
    """And the final choice."""


def _effort(n: int, switches: Switches, draft: bool) -> _Effort:
    """`n`: operations, of a program that moves as much as most."""
    if switches.settling == "none":
        return _Effort(1, 1, False, 0.0, _IMPROVING[1])
    rounds = max(1, min(ROUNDS, _EFFORT // (4 * n)))
    thorough = rounds == ROUNDS
    reserving = 3 if 40 * n < _EFFORT else 1
    if draft and thorough:
        return _Effort(min(reserving, 2), min(rounds, 3), thorough, _DRAFTING, _DRAFTING)
    return _Effort(reserving, rounds, thorough, _WHILE_RESERVING, _IMPROVING[not thorough])


def _usual(operations: int, moves: int) -> int:
    """How many operations of most programs would take as long to plan: with few moves it is less."""
    return max(min(operations, work_of_round(operations, moves) // _USUAL), 1)


def _size(trace: Trace, device: Device, life: Lifetimes, switches: Switches) -> int:
    """The same, before any moves are known."""
    if trace.operations <= _SMALL:
        return trace.operations
    used = select(life, device, switches, 0, improve=False)
    return _usual(trace.operations, 2 * int(np.count_nonzero(used)))


def drafts_are_plans(plan: Plan, switches: Switches | None) -> bool:
    """Whether there was no time for more than a draft."""
    switches, n = switches or Switches(), _usual(plan.trace.operations, len(plan.out_op) + len(plan.in_op))
    return _effort(n, switches, draft=True) == _effort(n, switches, draft=False)


def analyze(
    trace: Trace,
    device: Device,
    switches: Switches | None = None,
    say: Progress = silent,
    *,
    reservation: int | None = None,
) -> Plan:
    """Make a plan by which all that leaves is copied. Arguments and errors are those of :func:`lgm.analyze`.

    `reservation`: chunks kept free ahead of demand; None: as many as make the step shortest. With a given one the plan
    is a draft: made in less time, to be compared with others; about as good.
    """
    switches = switches or Switches()
    say("lifetimes", 0.0)
    life = analyze_lifetimes(trace, tails=switches.granularity == "chunk")
    check_feasible(trace, device, life)
    effort = _effort(_size(trace, device, life, switches), switches, draft=reservation is not None)
    late = lateness(trace, device, life) if switches.leads == "copies" and switches.granularity == "chunk" else None
    timings: tuple[Timing, ...] = ("packed", "just_in_time") if effort.thorough else ("packed",)
    if switches.timing != "auto":
        timings = (switches.timing,)
    if reservation is None:
        say("reservation", 0.1)
        reservation = _reserve(trace, device, life, switches, late, timings, effort, say)
    say("choice", 0.6)
    hastes = HASTES if effort.thorough else HASTES[:1]
    found = []
    for k, used in enumerate(_choices(life, device, switches, reservation, late, effort)):
        say("schedule", 0.7 + 0.1 * k)
        found += [settle(trace, device, life, timing, used, effort.rounds, hastes) for timing in timings]
    moves, prediction = _better(found)
    say("mapping", 0.95)
    return finished(trace, device, life, moves, reservation, prediction, switches)


def _better(found: list[tuple[Moves, Prediction]]) -> tuple[Moves, Prediction]:
    """The fastest; of those about as fast, the one that copies least."""
    least = min(prediction.step_seconds for _, prediction in found)
    alike = [each for each in found if each[1].step_seconds <= least * (1 + GAIN)]
    return min(alike, key=lambda each: int(each[0].out_bytes.sum() + each[0].in_bytes.sum()))


def _choices(
    life: Lifetimes, device: Device, switches: Switches, reservation: int, late: Ints | None, effort: _Effort
) -> list[Ints]:
    """The choice of least cost; and if there is time for two, the farthest next use: the least for equal costs."""
    if switches.choice == "sweep" or switches.granularity == "tensor":
        return [select(life, device, switches, reservation, improve=False, late=late)]
    choices = [select(life, device, switches, reservation, improve=True, late=late, work=effort.improving)]
    if effort.thorough and switches.costs == "auto":
        choices.append(select(life, device, switches, reservation, improve=False))
    return choices


def _reserve(
    trace: Trace,
    device: Device,
    life: Lifetimes,
    switches: Switches,
    late: Ints | None,
    timings: tuple[Timing, ...],
    effort: _Effort,
    say: Progress,
) -> int:
    """The reservation whose simulated step is shortest; the smallest among equals."""
    if life.peak <= device.budget_chunks or switches.reservation == "none":
        return 0
    best, least, worse = 0, np.inf, 0
    improve = effort.thorough and switches.choice == "optimal" and switches.granularity == "chunk"
    candidates = [0] + [c for c in (2, 8, 32, 128, 512) if c <= device.budget_chunks // 3]
    for k, reservation in enumerate(candidates):
        used = select(life, device, switches, reservation, improve=improve, late=late, work=effort.while_reserving)
        settled = [settle(trace, device, life, timing, used, effort.reserving)[1] for timing in timings]
        predicted = min(settled, key=lambda each: each.step_seconds)
        seconds = predicted.step_seconds
        say("reservation", 0.1 + 0.5 * (k + 1) / len(candidates))
        if seconds < least * (1 - GAIN):
            best, least, worse = reservation, seconds, 0
        else:
            worse += 1
        if worse == 2 or predicted.waits_seconds < GAIN * seconds:
            break
    return best


def finished(
    trace: Trace,
    device: Device,
    life: Lifetimes,
    moves: Moves,
    reservation: int,
    prediction: Prediction,
    switches: Switches,
) -> Plan:
    """The plan of these moves."""
    tensor = life.gaps.tensor
    keep = np.ones(trace.tensors, dtype=np.int64)
    if switches.mapping == "keep":
        keep = ranges_to_keep(trace, device, life, moves)
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
