"""Does ``vtensor fit`` say what a run then takes (U4)?

Covers: three unmodified loops; for each, what is foreseen at 50 and 35 % of the peak, and a run at these budgets.
``python -m benchmarks.fitting MODEL STEPS`` is such a loop.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from vtensor.demo.workloads import workload

from .record import Row, write
from .steps import THREE

SHARES = ("50%", "35%")
STEPS, LAST = 18, 8  # by then plans are made and followed
ROUNDS = 2
_VTENSOR = [sys.executable, "-m", "vtensor"]
_ROW = re.compile(r"^ +([\d.]+ [KMG]iB) +(\d+%) +[\d.]+ [KMG]iB +([\d.]+ \w+)", re.MULTILINE)
_UNITS = {"s": 1.0, "ms": 1e-3}


def train(name: str, steps: int) -> None:
    """The loop of anyone, that says what each step took."""
    torch.manual_seed(0)
    model, batch = workload(name)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(steps):
        given = batch(step)
        begin = time.perf_counter()
        model(**given).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {time.perf_counter() - begin:.4f}", flush=True)


def _output(*arguments: str) -> str:
    done = subprocess.run(
        [*_VTENSOR, *arguments], check=True, capture_output=True, text=True, cwd=Path(__file__).parents[1]
    )
    return done.stdout


def _loop(name: str, steps: int) -> list[str]:
    return ["-m", "benchmarks.fitting", name, str(steps)]


def foreseen(name: str) -> dict[str, tuple[str, float]]:
    """Budget and seconds of a step, by share of the peak; of all of it: what a run without a budget took."""
    rows = _ROW.findall(_output("fit", *_loop(name, 100)))
    found = {}
    for budget, share, step in rows:
        number, unit = step.split()
        found[share] = budget.replace(" ", ""), float(number) * _UNITS[unit]
    return found


def taken(name: str, budget: str) -> float:
    """Seconds of a step under it, once plans are followed."""
    text = _output("run", "--budget", budget, *_loop(name, STEPS))
    return statistics.median([float(each) for each in re.findall(r"^step ([\d.]+)", text, re.MULTILINE)][-LAST:])


def run() -> None:
    """Each model in turns: what is foreseen, what is taken."""
    rows: list[Row] = []
    for name in THREE:
        said: dict[str, list[float]] = {share: [] for share in SHARES}
        took: dict[str, list[float]] = {share: [] for share in SHARES}
        budgets = {}
        for _ in range(ROUNDS):
            found = foreseen(name)
            for share in SHARES:
                budgets[share], seconds = found[share]
                said[share].append(seconds)
                took[share].append(taken(name, budgets[share]))
        for share in SHARES:
            ratios = [a / b for a, b in zip(said[share], took[share], strict=True)]
            rows.append({
                "model": name, "budget": budgets[share], "of the peak": share,
                "foreseen (s)": ", ".join(f"{each:.3f}" for each in said[share]),
                "taken (s)": ", ".join(f"{each:.3f}" for each in took[share]),
                "foreseen / taken": ", ".join(f"{each:.3f}" for each in ratios),
                "in the mean": round(statistics.geometric_mean(ratios), 3),
            })  # fmt: skip
            print(rows[-1], flush=True)
    write("fitting", rows, "What `vtensor fit` foresees beside what `vtensor run` then takes (U4); goal: within 10 %.")


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]))
