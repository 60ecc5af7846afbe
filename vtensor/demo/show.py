"""Runs the workers of the demo side by side and shows what they did."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

from ..errors import ConfigError, VtensorError

__all__ = ["Turns", "Worker", "demo", "measure_peak"]


SHOWN = ("resnet50", "gpt2")
_LEAST_STEPS = 8  # the first are without a plan, and would be most of fewer


class Turns:
    """A Python process that does something, and says what in a line of JSON, when it is told.

    It runs in `checkout`, with the code that lies there, or like this one.
    """

    def __init__(self, arguments: list[str], checkout: Path | None = None) -> None:
        # No pipe: nobody empties it, and a full one would stop the process.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (as long as this lives)
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=checkout,
            env=None if checkout is None else {**os.environ, "PYTHONPATH": str(checkout)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.listen()

    def listen(self) -> dict[str, Any]:
        out: IO[str] | None = self.process.stdout
        assert out is not None
        for line in out:
            if line.startswith("{"):
                message: dict[str, Any] = json.loads(line)
                return message
        self.process.wait()
        self._errors.seek(0)
        raise VtensorError(f"a demo process ended early:\n{self._errors.read().decode(errors='replace')[-3000:]}")

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def step(self) -> dict[str, Any]:
        self.go()
        return self.listen()

    def finish(self) -> dict[str, Any]:
        result = self.listen()
        self.process.wait()
        return result

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


class Worker(Turns):
    """A training process that does one step when told."""

    def __init__(
        self,
        name: str,
        steps: int,
        options: dict[str, Any] | None = None,
        checkpointing: bool = False,
        settled: int = 0,
        *,
        checkout: Path | None = None,
    ) -> None:
        how = json.dumps({"options": options, "checkpointing": checkpointing, "settled": settled})
        super().__init__(["-m", "vtensor.demo.worker", name, str(steps), how], checkout)


def measure_peak(name: str, checkpointing: bool = False) -> int:
    """Bytes in whole chunks that the workload wants at most: its peak with the whole machine as budget."""
    worker = Worker(name, 2, {"budget": 1.0}, checkpointing)
    worker.step()
    worker.step()
    return int(worker.finish()["stats"]["wanted_bytes.peak"])


def _compare(name: str, fraction: float, steps: int, progress: Any, task: Any) -> dict[str, Any]:
    progress.update(task, note="measuring the peak")
    peak = measure_peak(name)
    budget = int(peak * fraction)
    plain, bounded = Worker(name, steps), Worker(name, steps, {"budget": budget})
    try:
        ratios = []
        for step in range(steps):
            first, second = plain.step(), bounded.step()
            if step >= 2:  # the first steps build the optimizer's state and warm the memory
                ratios.append(second["seconds"] / first["seconds"])
            progress.update(task, advance=1, note=f"loss {second['loss']:.3f}, plain torch {first['loss']:.3f}")
        expected, got = plain.finish(), bounded.finish()
    finally:
        plain.stop()
        bounded.stop()
    return {
        "peak": peak,
        "stats": got["stats"],
        "ratio": statistics.median(ratios),
        "identical": expected["digest"] == got["digest"],
    }


def demo(fraction: float, steps: int) -> int:
    """Train the workloads at `fraction` of their peak beside plain torch; 0 if all results are identical."""
    if not 0 < fraction <= 1 or steps < _LEAST_STEPS:
        raise ConfigError(f"the demo needs a fraction between 0 and 1 and at least {_LEAST_STEPS} steps")
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
        from rich.table import Table

        from .workloads import WORKLOADS
    except ImportError as error:
        raise ConfigError(f"the demo needs {error.name}: pip install transformers scikit-learn rich") from None
    from .. import native

    native.load()  # so that a first build is seen, and not hidden in a worker
    console = Console()
    console.print(f"Two models at {fraction:.0%} of the memory they want, each step beside plain PyTorch.")
    columns = ("[bold]{task.description}", "{task.fields[note]}")
    results = {}
    with Progress(
        TextColumn(columns[0]), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn(columns[1]),
        console=console,
    ) as progress:  # fmt: skip
        for name in SHOWN:
            task = progress.add_task(WORKLOADS[name].title, total=steps, note="")
            results[name] = _compare(name, fraction, steps, progress, task)
    table = Table(title="What it took (sizes in MiB)", pad_edge=False)
    table.add_column("model", no_wrap=True)
    for heading in (
        "peak\nwanted",
        "budget",
        "peak\nheld",
        "moved\nout",
        "moved\nin",
        "made\nagain",
        "time /\nplain",
        "same\nbits",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, result in results.items():
        stats = result["stats"]
        names = ("budget_bytes", "held_bytes.peak", "moved_out_bytes", "moved_in_bytes", "made_bytes")
        table.add_row(
            WORKLOADS[name].title,
            *(f"{size / 2**20:,.0f}" for size in (result["peak"], *(stats[key] for key in names))),
            f"{result['ratio']:.2f}",
            "[green]yes" if result["identical"] else "[red]NO",
        )
    console.print(table)
    console.print(
        "Bytes moved, and bytes made again instead, are those of all steps. Step times were measured in turns, in this "
        "run, on this machine."
    )
    return 0 if all(result["identical"] for result in results.values()) else 1
