"""Records one iteration of each model with the tool itself: the files in ``traces/``, and what they hold."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import lgm
from lgm.reports.report import trace_summary
from vtensor.demo.workloads import WORKLOADS, workload

from .record import metadata

FOLDER = Path(__file__).resolve().parent.parent / "traces"


def record(name: str, path: str, commit: str) -> None:
    """In a process of its own: train five steps with room to spare, save the last."""
    import torch

    import vtensor

    vtensor.enable("14GiB", device="cpu")
    vtensor.record()
    torch.manual_seed(0)
    model, batch = workload(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    model.train()
    for step in range(5):
        optimizer.zero_grad()
        loss = model(**batch(step)).loss
        loss.backward()
        optimizer.step()
        loss.item()  # as training loops do: an operation, where the loss's storage is large enough to be managed
    vtensor.save_trace(
        path,
        model=WORKLOADS[name].title if name in WORKLOADS else name,
        batch=json.dumps({key: list(value.shape) for key, value in batch(0).items()}),
        optimizer="AdamW",
        recorded_by="python -m benchmarks traces",
        commit=commit,
        processor=metadata()["machine"],
    )


def run() -> None:
    FOLDER.mkdir(exist_ok=True)
    commit = metadata()["commit"]  # before the files of this run count as changes
    for name in WORKLOADS:
        path = FOLDER / f"{name}.npz"
        subprocess.run([sys.executable, "-m", "benchmarks.traces", name, str(path), commit], check=True)
        print(f"{path.name}, {path.stat().st_size >> 10} KiB\n{trace_summary(lgm.load_trace(path))}", flush=True)


if __name__ == "__main__":
    record(*sys.argv[1:])
