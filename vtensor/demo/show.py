"""The demo: two models under a budget and in plain torch, step by step in turns, and a table of what they did.

Covers: the comparison, its progress, the table. Leaves: the processes (``processes``), training (``worker``).
"""

from __future__ import annotations

import statistics
from typing import Any

from ..errors import ConfigError
from .processes import Worker, measure_peak

__all__ = ["demo"]

SHOWN = ("resnet50", "gpt2")
_LEAST_STEPS = 8  # the first are without a plan, and would be most of fewer


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
        "re-\ncomputed",
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
        "Bytes moved, and bytes recomputed instead, are those of all steps. Step times were measured in turns, in this "
        "run, on this machine."
    )
    return 0 if all(result["identical"] for result in results.values()) else 1
