"""O1 and O2: what one operation and one allocation cost more under vtensor. See PLAN.md."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import torch

import vtensor
from vtensor import native
from vtensor.planning.current_planner import wait_for_plan

from .record import Row, write

PAIRS = 20
CALLS = 20_000


def _microseconds(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - begun) / CALLS * 1e6


def observer(pressed: bool) -> Row:
    differences, plain = [], []
    for _ in range(PAIRS):
        vtensor.enable("64MiB", min_size=1)
        if pressed:
            torch.empty(65 << 20, dtype=torch.uint8)  # more than the budget: from now on operations are observed
        assert native.load().parts.observing() == pressed
        add = partial(torch.zeros(16).add_, torch.ones(16))
        with torch.no_grad():
            on = _microseconds(add)
            vtensor.disable()  # the tensors stay where they are; only the observer is gone
            off = _microseconds(add)
        differences.append(on - off)
        plain.append(off)
    when = "after the budget was exceeded" if pressed else "with room to spare"
    return _row(f"O1 an operation with two tensors, {when}", differences, statistics.median(plain), 0.3)


def allocation() -> Row:
    differences, plain = [], []
    elements = (2 << 20) // 4
    for _ in range(PAIRS):
        plain.append(_microseconds(lambda: torch.empty(elements)))
        vtensor.enable("64MiB")
        managed = _microseconds(lambda: torch.empty(elements))
        nothing = _microseconds(lambda: torch.empty(0))
        vtensor.disable()
        differences.append(managed - nothing)
    return _row("O2 managed allocation and free of 2 MiB, reused", differences, statistics.median(plain), 1.5)


def recording() -> None:
    """B9: one operation while its iteration is only observed, recorded, and followed."""
    recorded, followed, plain = [], [], []
    calls = 5_000

    def iteration(a: torch.Tensor, b: torch.Tensor) -> float:
        begun = time.perf_counter()
        for _ in range(calls):
            a.add_(b)
        return (time.perf_counter() - begun) / calls * 1e6

    for _ in range(PAIRS):
        vtensor.enable("1MiB", min_size=1, chunk=4096)
        with torch.no_grad():
            a, b = torch.zeros(16), torch.ones(16)
            kept = [torch.zeros(4096 // 4) for _ in range(300)]  # more than the budget: operations are observed
            observed = statistics.median(iteration(a, b) for _ in range(3))  # no boundary yet: nothing is recorded
            vtensor.step()
            del kept[:60]
            first = []
            for _ in range(3):
                first.append(iteration(a, b))
                vtensor.step()
            wait_for_plan()
            iteration(a, b)
            vtensor.step()
            planned = vtensor.memory_stats()["planned_iterations"]
            second = []
            for _ in range(3):
                second.append(iteration(a, b))
                vtensor.step()
            assert vtensor.memory_stats()["planned_iterations"] == planned + 3
        vtensor.disable()
        recorded.append(statistics.median(first) - observed)
        followed.append(statistics.median(second) - statistics.median(first))
        plain.append(observed)
        del a, b, kept
    rows = [
        _row("B9 recording adds to an observed operation", recorded, statistics.median(plain), 0.2),
        _row("B9 following a plan adds to a recorded one", followed, statistics.median(plain), 0.2),
    ]
    write("recording", rows, "Cost of the recorder and of the plan runner (B9); the whole call is an observed one.")


def _row(what: str, differences: list[float], plain: float, goal: float) -> Row:
    return {
        "what": what,
        "adds, median (us)": round(statistics.median(differences), 3),
        "goal (us)": goal,
        "lowest": round(min(differences), 3),
        "highest": round(max(differences), 3),
        "plain torch, whole call (us)": round(plain, 3),
    }


def run() -> None:
    write("overhead", [observer(False), observer(True), allocation()], "What vtensor adds to one call (O1, O2).")
