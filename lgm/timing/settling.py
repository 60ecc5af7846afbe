"""A schedule and the times it leads to, until they fit each other.

Covers: scheduling a choice by the times that the simulation before found; keeping the fastest.
Leaves: when copies begin (``schedule``), what comes of it (``simulate``), the choice (``choosing.selection``).
"""

from __future__ import annotations

import numpy as np

from ..iteration.lifetimes import Lifetimes
from ..records.model import Device, Ints, Prediction, Trace
from ..records.rows import nominal
from ..switches import Timing
from .moves import Moves
from .schedule import schedule
from .simulate import run_plan

__all__ = ["GAIN", "HASTES", "ROUNDS", "settle", "work_of_round"]

ROUNDS = 6
GAIN = 0.002  # of a step: less is not worth another round
HASTES = (1.0, 0.92)
_MOVE = 5  # operations


def work_of_round(operations: int, moves: int) -> int:
    """What a round costs, in operations that move nothing; one takes less than 10 us."""
    return operations + _MOVE * moves


def settle(
    trace: Trace,
    device: Device,
    life: Lifetimes,
    timing: Timing,
    used: Ints,
    rounds: int,
    hastes: tuple[float, ...] = HASTES[:1],
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
            moves = schedule(trace, device, life, used, begin=begin, timing=timing)
            prediction, line = run_plan(trace, device, life, moves)
            if best is None or prediction.step_seconds < best[1].step_seconds * (1 - GAIN):
                best, worse = (moves, prediction), 0
            else:
                worse += 1
            if prediction.waits_seconds < GAIN * prediction.step_seconds or timing == "on_demand":
                return best
            if worse == 3:
                break
            waited = np.append(line.begin, prediction.step_seconds) - unhurried
            begin = np.maximum.accumulate(unhurried + haste * waited)
    assert best is not None
    return best
