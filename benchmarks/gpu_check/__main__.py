"""``make gpu-check``: what must be seen on a GPU, the most valuable first.

In this order: programs (tests/gpu/test_gpu.py); ResNet-50 and GPT-2 in fp32 at half of plain torch's peak, beside
what else people use most, every way capped to the same bytes; what mapping and copying cost; then the other models,
bf16 and the other budgets; at the end the other ways. Each row is in its result file as soon as it is there. A call
ends after --seconds (and the row it is at); the next goes on where it ended, until all is there.

``--device cpu --small`` runs the same code without a GPU, to see that it runs; its figures mean nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch

from ..record import RESULTS
from .compare import Comparison, all_ways
from .costs import costs, packing
from .kept import Kept
from .models import BLOCKS, models

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("programs", "models", "costs")
_PROGRAMS = 300  # seconds: one that hangs must not take the rest of the call
_AT_ONCE = 8  # of the programs' processes: each has a context of its own, of half a gigabyte
_FIRST = (("resnet50", "fp32", 0.5), ("gpt2", "fp32", 0.5))
_MOST_USED = ("vtensor plan", "checkpoint per block", "checkpoint per block, rest on the host", "save_on_cpu, fair")

Wanted = tuple[str, str, float, tuple[str, ...]]


def order(names: list[str], dtypes: list[str]) -> list[Wanted]:
    """Models, number formats, budgets and ways, the most valuable first."""
    chosen = [(name, dtype, share) for share in (0.5, 0.35, 0.75) for dtype in dtypes for name in names]
    chosen = [one for one in _FIRST if one in chosen] + [one for one in chosen if one not in _FIRST]
    rest = tuple(way for way in all_ways() if way not in _MOST_USED)
    return [(*one, ways) for ways in (_MOST_USED, rest) for one in chosen]


class Check:
    """One call."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.ends = time.monotonic() + given.seconds
        self.rows_left = given.rows
        self.failed = 0
        dry = "" if given.device == "cuda" else "_dry"
        note = "Every way capped to the same bytes, as the driver sees them, the context apart (C3)."
        self.programs = Kept(f"gpu_programs{dry}", "Tests that need a GPU.", given.results)
        self.models = Kept(f"gpu_models{dry}", note, given.results)
        note = "CUDA's virtual memory and the bus: goal (C4), 90 % of the pinned link each way."
        self.costs = Kept("gpu_costs", note, given.results)
        self.packing = Kept("gpu_packing", "Small pieces out of the GPU, singly or packed by a kernel.", given.results)

    def in_time(self) -> bool:
        """Asked before each row."""
        self.rows_left -= 1
        return bool(self.rows_left >= 0 and time.monotonic() < self.ends)

    def steps(self) -> Iterator[tuple[str, Callable[[], bool]]]:
        """Parts in their order; each does what is missing of it, and says whether nothing is any more."""
        compared = self.comparisons()
        yield "programs", self.run_programs
        for done, step in enumerate(compared):
            yield "models", step
            if done + 1 == len(_FIRST):
                yield "costs", self.run_costs
        if len(compared) < len(_FIRST):
            yield "costs", self.run_costs

    def comparisons(self) -> list[Callable[[], bool]]:
        given = self.given
        made: dict[tuple[str, str], Comparison] = {}
        steps: list[Callable[[], bool]] = []
        for name, dtype, share, ways in order(given.model or list(BLOCKS), given.dtype or ["fp32", "bf16"]):
            if (name, dtype) not in made:
                chunk = "64KiB" if given.small else None
                made[name, dtype] = Comparison(
                    self.models, name, models(given.small)[name], given.device, dtype, chunk, self.in_time
                )
            steps.append(partial(made[name, dtype].run, share, ways))
        return steps

    def run_programs(self) -> bool:
        if "programs" in self.programs:
            return True
        tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/gpu/test_gpu.py"]
        if importlib.util.find_spec("xdist"):
            tests += ["-n", str(min(os.cpu_count() or 1, _AT_ONCE))]
        try:
            done = subprocess.run(tests, cwd=ROOT, check=False, capture_output=True, text=True, timeout=_PROGRAMS)
        except subprocess.TimeoutExpired as hung:
            print(str(hung.stdout or "")[-4000:], f"the programs took more than {_PROGRAMS} s", flush=True)
            self.failed = 1
            return False
        print(done.stdout[-4000:], done.stderr[-2000:], flush=True)
        self.failed = done.returncode
        last = (done.stdout.strip().splitlines() or ["no output"])[-1]
        if done.returncode == 0:
            self.programs.add("programs", {"tests": "tests/gpu/test_gpu.py", "result": last.strip("= ")})
        return done.returncode == 0

    def run_costs(self) -> bool:
        if self.given.device == "cuda":
            costs(self.costs)
            packing(self.packing)
        return True

    def run(self) -> int:
        parts, whole = self.given.part or PARTS, True
        for part, step in self.steps():
            if part in parts and not step():
                whole = False
                if time.monotonic() >= self.ends or self.rows_left < 0:
                    break
        if whole and not self.failed:
            for kept in (self.programs, self.models, self.costs, self.packing):
                kept.close()
        print("all is there" if whole else "not all is there yet: call again, and it goes on", flush=True)
        return self.failed


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.gpu_check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", action="append", choices=PARTS, help="only this; may be given several times")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny models: to see that it runs")
    parser.add_argument("--model", action="append", choices=list(BLOCKS), help="default: all")
    parser.add_argument("--dtype", action="append", choices=["fp32", "bf16"])
    parser.add_argument("--seconds", type=float, default=480, help="begin no further row after so many (default: 480)")
    parser.add_argument("--rows", type=int, default=sys.maxsize, help="and none after so many")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of what is kept between calls")
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        sys.exit("gpu-check: torch sees no GPU here; 'vtensor doctor' says what is missing")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    # Attention takes a backward pass that repeats itself only where no other is allowed.
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    sys.exit(Check(given).run())


if __name__ == "__main__":
    main()
