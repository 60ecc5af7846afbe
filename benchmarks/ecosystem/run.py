"""All loops beside the same ones in plain torch, at 40 % of their peak.

Covers: starting the processes, whose steps take turns, processor time of a step, and the ratios.
Leaves: the loops (``loops``, ``libraries``).
"""

from __future__ import annotations

import socket
import statistics
from collections.abc import Sequence
from typing import Any

from vtensor.demo.processes import SteppedProcess

from ..record import Row, write
from .loops import STEPS, WARM
from .table import LOOPS

_TURNS = 2
_SHARE = 0.4
_DOUBTS = 4  # more loops in plain torch, before what came out differently is taken for vtensor's doing


class _Loop:
    """A loop in as many processes as it takes."""

    def __init__(self, name: str, budget: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        command = ["-m", "benchmarks.ecosystem", name, budget]
        self.processes = [SteppedProcess([*command, str(rank), port]) for rank in range(LOOPS[name][1])]

    def go_on(self) -> dict[str, Any]:
        """Until the next turn: what the first process says then."""
        for process in self.processes:
            process.go()
        said = [process.listen() for process in self.processes]  # all of them, before another loop has its turn
        return said[0]

    def stop(self) -> None:
        for process in self.processes:
            process.stop()


def _alone(name: str, budget: str) -> dict[str, Any]:
    """What became of a loop by itself."""
    loop = _Loop(name, budget)
    try:
        return [loop.go_on() for _ in range(STEPS - WARM + 2)][-1]
    finally:
        loop.stop()


def _pair(name: str, budget: int) -> tuple[list[float], list[float], dict[str, Any], dict[str, Any]]:
    """Processor time of each step in plain torch and under the budget, and what became of both."""
    plain, managed = _Loop(name, "plain"), _Loop(name, str(budget))
    try:
        said = [(managed.go_on(), plain.go_on()) for _ in range(STEPS - WARM + 2)]
    finally:
        plain.stop()
        managed.stop()
    steps, (got, expected) = said[1:-1], said[-1]  # the first turn is all that comes before the last step of the warm
    return [b["processor"] for _, b in steps], [a["processor"] for a, _ in steps], expected, got


def _identical(name: str, expected: set[str], got: set[str]) -> str:
    for _ in range(_DOUBTS):
        if got == expected or len(expected) > 1:
            break
        expected = expected | {_alone(name, "plain")["digest"]}  # two may have been the same by chance
    if len(expected) > 1:  # inductor's gradient of an embedding, on several threads
        return "plain PyTorch differs from itself"
    return "yes" if got == expected else "NO"


def _measured(name: str) -> Row:
    budget = int(_alone(name, "100%")["stats"]["wanted_bytes.peak"] * _SHARE)
    plain: list[float] = []
    managed: list[float] = []
    digests: tuple[set[str], set[str]] = (set(), set())
    shares, stats = [], {}
    for _ in range(_TURNS):
        a, b, expected, got = _pair(name, budget)
        plain += a
        managed += b
        digests[0].add(expected["digest"])
        digests[1].add(got["digest"])
        stats = got["stats"]
        shares.append(f"{stats['planned_iterations']} of {stats['iterations']}")
    return {
        "loop": name, "plain (s)": round(statistics.median(plain), 3), "budget (MiB)": budget >> 20,
        "ratio": statistics.median(b / a for a, b in zip(plain, managed, strict=True)),
        "planned": ", ".join(shares), "plans": stats["plans"], "identical": _identical(name, *digests),
    }  # fmt: skip


def run(bases: Sequence[str] = ()) -> None:
    """Each bare loop, and those that are held against it."""
    rows: list[Row] = []
    for base in bases or [name for name, (_, _, beside) in LOOPS.items() if not beside]:
        measured = [_measured(name) for name in [base, *(n for n, (_, _, beside) in LOOPS.items() if beside == base)]]
        for row in measured:
            beside = row["ratio"] / measured[0]["ratio"]
            rows.append(row | {"ratio": round(row["ratio"], 3), "beside the bare loop's": round(beside, 3)})
            print(rows[-1], flush=True)
    write(
        "ecosystem", rows,
        f"Loops of libraries at {_SHARE:.0%} of their peak (U1): processor time a step beside the same step in plain "
        f"torch, in turns, the middle one of those after the {WARM}th of {_TURNS} pairs of processes. Goal: at most "
        "1.05 of the bare loop's ratio.",
    )  # fmt: skip
