"""Does ``vtensor fit`` say what a run then takes (U4)?

Covers: three unmodified loops; for each, what is foreseen at 50 and 35 % of the peak, and runs at these budgets. All
take turns at a step each, so that what this machine does meanwhile happens to them all.
``python -m benchmarks.fitting MODEL STEPS`` is such a loop: one step for each line on its stdin.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import time

import torch

from vtensor.demo.processes import SteppedProcess, measure_peak
from vtensor.demo.workloads import workload

from .record import Row, write
from .steps import THREE

SHARES = ("50%", "35%")
SETTLED, LAST = 10, 8  # steps until plans are followed; of those beside which is foreseen, at least
ROUNDS = 2
_ROW = re.compile(r"^ +([\d.]+ [KMG]iB) +(\d+%) +[\d.]+ [KMG]iB +([\d.]+ \w+)", re.MULTILINE)
_UNITS = {"s": 1.0, "ms": 1e-3}


def train(name: str, steps: int) -> None:
    """The loop of anyone, but that it waits for its turn, and says what each step took."""
    torch.manual_seed(0)
    model, batch = workload(name)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    print("{}", flush=True)
    for step, _ in zip(range(steps), sys.stdin, strict=False):
        given = batch(step)
        begin = time.perf_counter()
        model(**given).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(json.dumps({"seconds": time.perf_counter() - begin}), flush=True)


class _Loop(SteppedProcess):
    """One under `vtensor`'s command of these words."""

    def __init__(self, name: str, *words: str) -> None:
        super().__init__(["-m", "vtensor", *words, "-m", "benchmarks.fitting", name, "1000"])

    def seconds(self) -> float:
        return float(self.step()["seconds"])

    def answer(self) -> str | None:
        """One more step; if it was the last that it needed: what it then says."""
        self.go()
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return None if line.startswith("{") else line + self.process.stdout.read()


def _round(name: str, budgets: dict[str, str]) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds of a step by share of the peak: as foreseen, and as taken meanwhile by runs that follow plans."""
    runs = {share: _Loop(name, "run", "--budget", budget) for share, budget in budgets.items()}
    taken: dict[str, list[float]] = {share: [] for share in runs}
    fit = None
    try:
        for _ in range(SETTLED):
            for run in runs.values():
                run.seconds()
        fit, said = _Loop(name, "fit"), None
        while said is None or len(taken[SHARES[0]]) < LAST:
            said = said or fit.answer()
            for share, run in runs.items():
                taken[share].append(run.seconds())
    finally:
        for each in [*runs.values(), *([fit] if fit else [])]:
            each.stop()
    foreseen = {}
    for _, share, step in _ROW.findall(said):
        number, unit = step.split()
        foreseen[share] = float(number) * _UNITS[unit]
    return foreseen, {share: statistics.median(seconds) for share, seconds in taken.items()}


def run() -> None:
    """Each model: what is foreseen, what is taken."""
    rows: list[Row] = []
    for name in THREE:
        peak = measure_peak(name)
        budgets = {share: f"{int(peak * int(share[:-1]) / 100)}" for share in SHARES}
        rounds = [_round(name, budgets) for _ in range(ROUNDS)]
        for share, budget in budgets.items():
            said, took = ([figures[share] for figures in both] for both in zip(*rounds, strict=True))
            ratios = [a / b for a, b in zip(said, took, strict=True)]
            rows.append({
                "model": name, "budget (MiB)": int(budget) >> 20, "of the peak": share,
                "foreseen (s)": ", ".join(f"{each:.3f}" for each in said),
                "taken (s)": ", ".join(f"{each:.3f}" for each in took),
                "foreseen / taken": ", ".join(f"{each:.3f}" for each in ratios),
                "in the mean": round(statistics.geometric_mean(ratios), 3),
            })  # fmt: skip
            print(rows[-1], flush=True)
    what = "What `vtensor fit` foresees beside what `vtensor run` takes meanwhile, in turns (U4); goal: within 10 %."
    write("fitting", rows, what)


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]))
