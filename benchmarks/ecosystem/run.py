"""All loops beside a bare one, at 40 % of their peak.

Covers: starting the processes in turns, processor time of a step, and the ratios.
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
_TURNS = 2
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


def _step(results: Sequence[dict[str, Any]]) -> float:
    """Seconds of all threads for a step, the middle one of each run and the least of the runs.

    Those with an evaluation in them are few; and what disturbs only ever adds to processor time.
    """
    middles: list[float] = []
    for each in results:
        ends = each["processor"]
        assert len(ends) == STEPS, len(ends)
        middles.append(statistics.median(b - a for a, b in zip(ends[_WARM:], ends[_WARM + 1 :], strict=False)))
    return min(middles)


def _identical(plain: Sequence[dict[str, Any]], managed: Sequence[dict[str, Any]]) -> str:
    expected, got = ({each["digest"] for each in results} for results in (plain, managed))
    if len(expected) > 1:  # inductor's gradient of an embedding, on several threads
        return "plain PyTorch differs from itself"
    return "yes" if got == expected else "NO"


def _in_turns(names: Sequence[str]) -> dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]], int]]:
    """Results in plain torch and under the budget, and that budget, of loops that take turns."""
    budgets = {name: int(measure(name, "100%")["stats"]["wanted_bytes.peak"] * _SHARE) for name in names}
    results: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]], int]] = {
        name: ([], [], budget) for name, budget in budgets.items()
    }
    for _ in range(_TURNS):
        for name in names:
            results[name][0].append(measure(name, "plain"))
            results[name][1].append(measure(name, str(budgets[name])))
    return results


def run(bases: Sequence[str] = ()) -> None:
    """Each bare loop together with those that are held against it."""
    rows: list[Row] = []
    for base in bases or [name for name, (_, _, beside) in LOOPS.items() if not beside]:
        results = _in_turns([base, *(name for name, (_, _, beside) in LOOPS.items() if beside == base)])
        ratio = {name: _step(managed) / _step(plain) for name, (plain, managed, _) in results.items()}
        for name, (plain, managed, budget) in results.items():
            stats = managed[-1]["stats"]
            rows.append({
                "loop": name, "plain (s)": round(_step(plain), 3), "budget (MiB)": budget >> 20,
                "ratio": round(ratio[name], 3), "beside the bare loop's": round(ratio[name] / ratio[base], 3),
                "planned": f"{stats['planned_iterations']} of {stats['iterations']}", "plans": stats["plans"],
                "identical": _identical(plain, managed),
            })  # fmt: skip
            print(rows[-1], flush=True)
    write(
        "ecosystem", rows,
        f"Loops of libraries at {_SHARE:.0%} of their peak (U1): processor time a step, the middle one of those after "
        f"the {_WARM}th, the least of {_TURNS} processes in turns. Goal: at most 1.05 of the bare loop's ratio.",
    )  # fmt: skip
