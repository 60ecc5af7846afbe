"""All loops in pairs, at 40 % of their peak.

Covers: starting the processes, ratios of processor time a step, and beside the bare loop's.
Leaves: the loops (``loops``).
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from ..record import Row, write
from .loops import LOOPS, STEPS

_WARM = 12  # steps; a plan is there by then
_PAIRS = 3
_SHARE = 0.4


def measure(name: str, budget: str) -> dict[str, Any]:
    """What the first process of a loop says."""
    processes = LOOPS[name][1]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(processes)}
    alone = {} if processes == 1 else shared
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.ecosystem", name, budget],
            env={**os.environ, **alone, **({"RANK": str(rank)} if alone else {})},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(processes)
    ]  # fmt: skip
    said = [process.communicate() for process in started]
    for process, (_, errors) in zip(started, said, strict=True):
        if process.returncode != 0:
            raise RuntimeError(f"{name} at {budget} ended with {process.returncode}:\n{errors[-3000:]}")
    lines = [line for line in said[0][0].splitlines() if line.startswith('{"processor"')]
    result: dict[str, Any] = json.loads(lines[0])
    return result


def _step(result: dict[str, Any]) -> float:
    """Seconds of all threads in the middle one of the steps: those with an evaluation in them are few."""
    ends = result["processor"]
    assert len(ends) == STEPS, len(ends)
    middle: float = statistics.median(b - a for a, b in zip(ends[_WARM:], ends[_WARM + 1 :], strict=False))
    return middle


def run(names: Sequence[str] = tuple(LOOPS)) -> None:
    rows: list[Row] = []
    ratio: dict[str, float] = {}
    for name in names:
        peak = int(measure(name, "100%")["stats"]["wanted_bytes.peak"])
        plain: list[dict[str, Any]] = []
        managed: list[dict[str, Any]] = []
        for pair in range(_PAIRS):  # in turns, each first once
            ways = [(plain, "plain"), (managed, str(int(peak * _SHARE)))]
            for results, budget in ways if pair % 2 else reversed(ways):
                results.append(measure(name, budget))
        ratio[name] = statistics.median(_step(b) / _step(a) for a, b in zip(plain, managed, strict=True))
        stats, beside = managed[-1]["stats"], LOOPS[name][2]
        rows.append({
            "loop": name, "plain (s)": round(statistics.median(map(_step, plain)), 3),
            "budget (MiB)": int(peak * _SHARE) >> 20, "ratio": round(ratio[name], 3),
            "beside the bare loop's": round(ratio[name] / ratio[beside], 3) if beside in ratio else "",
            "planned": f"{stats['planned_iterations']} of {stats['iterations']}", "plans": stats["plans"],
            "identical": "yes" if len({each["digest"] for each in plain + managed}) == 1 else "NO",
        })  # fmt: skip
        print(rows[-1], flush=True)
    write(
        "ecosystem", rows,
        f"Loops of libraries at {_SHARE:.0%} of their peak (U1): processor time a step, the middle one of "
        f"those after the {_WARM}th, {_PAIRS} pairs of processes. Goal: at most 1.05 of the bare loop's ratio.",
    )  # fmt: skip
