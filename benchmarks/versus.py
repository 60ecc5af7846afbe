"""Two commits in turns within one run: did anything get slower? ``python -m benchmarks.versus OLD NEW``.

OLD and NEW are checkouts (``git worktree add ../old COMMIT``). Two processes of each take steps in turns, all after the
same number of warm ones; how much two of the same commit differ says what a difference between the commits means.
What one operation costs depends on where a process happens to lie in memory: each turn of that is four new processes.
"""

from __future__ import annotations

import argparse
import math
import statistics
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from vtensor.demo.processes import SteppedProcess, Worker, measure_peak

from .plans import WARM, interval
from .record import Row, write
from .steps import THREE

# What one side measures when it is told to: microseconds of an operation observed, and of an allocation reused.
OVERHEAD = """
import json, math, sys, time, torch, vtensor
torch.set_num_threads(1)
vtensor.enable("64MiB", min_size=1, device="cpu")
if sys.argv[1] == "pressed":
    torch.empty(65 << 20, dtype=torch.uint8)  # from now on operations are observed
a, b = torch.zeros(16), torch.ones(16)
add, allocate = (lambda: a.add_(b)), (lambda: torch.empty(1 << 19))
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    result = {}
    with torch.no_grad():
        for name, call in (("operation", add), ("allocation", allocate)):
            result[name] = math.inf
            for _ in range(40):
                begun = time.perf_counter()
                for _ in range(2000):
                    call()
                result[name] = min(result[name], time.perf_counter() - begun)
    print(json.dumps(result), flush=True)
"""


def in_turns(
    old: Path, new: Path, make: Callable[[Path], SteppedProcess], turns: int, *, fresh: bool = False
) -> dict[str, list[dict[str, Any]]]:
    """What each of four processes answered, turn by turn; `fresh`: of four new ones each turn."""
    checkouts = {"old": old, "new": new, "new again": new, "old again": old}
    processes = {} if fresh else {side: make(checkout) for side, checkout in checkouts.items()}
    try:
        answers: dict[str, list[dict[str, Any]]] = {side: [] for side in checkouts}
        for turn in range(turns):
            order = list(checkouts)
            for side in order if turn % 2 else order[::-1]:
                if fresh:
                    processes[side] = make(checkouts[side])
                answers[side].append(processes[side].step())
                if fresh:
                    processes.pop(side).stop()
        return answers
    finally:
        for process in processes.values():
            process.stop()


def compare(case: str, answers: dict[str, list[dict[str, Any]]], figure: str, warm: int) -> Row:
    def ratios(side: str, to: str) -> list[float]:
        pairs = zip(answers[side][warm:], answers[to][warm:], strict=True)
        return [a[figure] / b[figure] for a, b in pairs]

    first, again = ratios("new", "old"), ratios("new again", "old again")
    both = sorted(math.sqrt(a * b) for a, b in zip(first, again, strict=True))
    low, high = interval(both)
    row = {
        "case": case,
        "new / old": round(statistics.median(both), 3),
        "so for 90 %": f"{low:.3f} to {high:.3f}",
        "new / new": round(statistics.median(ratios("new again", "new")), 3),
        "old / old": round(statistics.median(ratios("old again", "old")), 3),
    }
    print(row, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.versus", description=__doc__)
    parser.add_argument("old", type=Path, help="a checkout of the older commit")
    parser.add_argument("new", type=Path, help="a checkout of the newer one")
    parser.add_argument("--models", nargs="*", default=list(THREE), choices=list(THREE))
    parser.add_argument("--pairs", type=int, default=12, help="steps of each process that count")
    given = parser.parse_args()
    old, new = given.old.resolve(), given.new.resolve()
    rows, steps = [], WARM + given.pairs
    for when in ("room", "pressed"):
        answers = in_turns(old, new, partial(SteppedProcess, ["-c", OVERHEAD, when]), given.pairs, fresh=True)
        for figure in ("operation", "allocation"):
            rows.append(compare(f"O {figure}, {when}", answers, figure, 0))
    for name in given.models:
        peak = measure_peak(name)
        cases: dict[str, dict[str, Any]] = {
            "S1": {"budget": 2 * peak},
            "S2 at 50 %": {"budget": peak // 2, "policy": "lru"},
            "B3 at 50 %": {"budget": peak // 2},
            "demo, 40 %": {"budget": peak * 2 // 5},
        }
        for case, options in cases.items():
            answers = in_turns(old, new, partial(training, name, steps, options), steps)
            rows.append(compare(f"{case}, {name}", answers, "seconds", WARM))
    commits = f"{commit_of(old)} {commit_of(new)}"
    note = f"Two commits in turns, two processes of each: {commits.replace(' ', ' and ')}."
    write("versus", rows, note, f"python -m benchmarks.versus {commits}")


def training(name: str, steps: int, options: dict[str, Any], checkout: Path) -> SteppedProcess:
    return Worker(name, steps, options, checkout=checkout)


def commit_of(checkout: Path) -> str:
    asked = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=checkout, capture_output=True, text=True, check=True
    )
    return asked.stdout.strip()


if __name__ == "__main__":
    main()
