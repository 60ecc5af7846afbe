"""A model eight times as large as the budgets of two processes together, trained by them (V6).

Covers: bytes held by each, real memory of both beside plain torch's, the losses of both.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from typing import Any

from .microbatches import language_model, loss_of, ordinary_step
from .record import write
from .steps import MIB

LAYERS, WIDTH, LENGTH, MICROBATCHES, STEPS = 24, 1024, 128, 4, 4
PROCESSES, TIMES = 2, 8


def run() -> None:
    """Plain torch in one process, then a pipeline of two with a budget each and a file instead of memory."""
    plain = _lines([sys.executable, "-m", "benchmarks.pipeline", "plain"])[0]
    budget = plain["weights"] * 4 // TIMES // PROCESSES
    with tempfile.TemporaryDirectory() as folder:
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={PROCESSES}"]
        found = _lines([sys.executable, *launcher, "-m", "benchmarks.pipeline", str(budget), folder])
    rows = [
        {
            "": name, "weights + gradients + states (MiB)": round(each["weights"] * 4 / MIB),
            "budget (MiB)": round(budget / MIB) if "held" in each else "", "held": round(each.get("held", 0) / MIB),
            "real memory (MiB)": round(each["real"] / MIB), "a step (s)": round(each["seconds"], 1),
            "identical": "" if each is plain else "yes" if each["losses"] == plain["losses"] else "NO",
        }
        for name, each in [("plain", plain), *((f"process {row['rank']}", row) for row in found)]
    ]  # fmt: skip
    for row in rows:
        print(row, flush=True)
    write("pipeline", rows, f"{LAYERS} layers of {WIDTH}, AdamW, {MICROBATCHES} microbatches; other memory in a file.")


def _lines(command: list[str]) -> list[dict[str, Any]]:
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = [json.loads(line[5:]) for line in output.splitlines() if line.startswith("row: ")]
    return sorted(found, key=lambda row: row["rank"])


def _train(budget: int, folder: str) -> dict[str, Any]:
    import torch
    from torch import distributed

    import vtensor
    from vtensor.demo.worker import peak_rss

    torch.set_num_threads(1)
    if budget:
        distributed.init_process_group("gloo")
        vtensor.enable(device="cpu", budget=budget, spill_dir=folder, host="64GiB")
    torch.manual_seed(0)
    model = language_model(LAYERS, WIDTH, 256, LENGTH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    trainer = (
        vtensor.Harmony(model, optimizer, loss=loss_of, microbatches=MICROBATCHES, pipeline=True) if budget else None
    )
    losses = []
    begun = time.perf_counter()
    for step in range(STEPS):
        torch.manual_seed(step)
        tokens = torch.randint(0, 256, (MICROBATCHES, LENGTH))
        loss = trainer.step(tokens) if trainer else ordinary_step(model, optimizer, tokens, MICROBATCHES)
        losses.append(loss.item())
    seconds = (time.perf_counter() - begun) / STEPS
    row = {
        "rank": distributed.get_rank() if budget else 0,
        "weights": sum(p.numel() * p.element_size() for p in model.parameters()),
        "real": peak_rss(), "seconds": seconds, "losses": losses,
    }  # fmt: skip
    if budget:
        row["held"] = vtensor.memory_stats()["held_bytes.peak"]
        distributed.barrier()
        distributed.destroy_process_group()
    return row


if __name__ == "__main__":
    found = _train(0, "") if sys.argv[1] == "plain" else _train(int(sys.argv[1]), sys.argv[2])
    sys.stdout.write("row: " + json.dumps(found) + "\n")  # at once: two processes write to one pipe
