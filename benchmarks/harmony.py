"""Training in the order of packs beside the ordinary loop over microbatches, under the same budget (V2).

Covers: bytes moved and seconds of a step, by the number of microbatches.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from typing import Any

from .edge import shared_link_here
from .microbatches import language_model, loss_of, ordinary_step
from .record import Row, write
from .steps import MIB

LAYERS, WIDTH, LENGTH = 24, 512, 32
SHARE = 0.3  # of weights, gradients and states
WARM, STEPS = 5, 8  # of the order of packs: until it follows a plan, and in all
ORDINARY = 5  # until it follows a plan, and one that does: at 64 microbatches each takes minutes, of copying alone


def run() -> None:
    """Each order in a process of its own, for 16 and 64 microbatches."""
    rows: list[Row] = []
    link = shared_link_here()
    for count in (16, 64):
        found = {order: _run(order, count, steps, link) for order, steps in (("packs", STEPS), ("ordinary", ORDINARY))}
        packs, ordinary = found["packs"], found["ordinary"]
        weights = packs["weights"]
        rows.append({
            "microbatches": count,
            "weights (MiB)": round(weights / MIB), "budget (MiB)": round(packs["budget"] / MIB),
            "ordinary: in, out (x weights)": f"{ordinary['in'] / weights:.2f}, {ordinary['out'] / weights:.2f}",
            "packs: in, out (x weights)": f"{packs['in'] / weights:.2f}, {packs['out'] / weights:.2f}",
            "in: ordinary / packs": round(ordinary["in"] / packs["in"], 1),
            "all: ordinary / packs": round((ordinary["in"] + ordinary["out"]) / (packs["in"] + packs["out"]), 1),
            "ordinary (s)": round(ordinary["seconds"], 2), "packs (s)": round(packs["seconds"], 2),
            "ordinary / packs (s)": round(ordinary["seconds"] / packs["seconds"], 2),
            "planned (ordinary, packs)": f"{ordinary['planned']}, {packs['planned']}",
            "packs / foreseen (s)": round(packs["seconds"] / packs["foreseen"], 3) if packs["foreseen"] else "",
            "identical": "yes" if packs["losses"] == ordinary["losses"] else "NO",
        })  # fmt: skip
        print(rows[-1], flush=True)
    write(
        "harmony",
        rows,
        f"{LAYERS} layers of a GPT-2 type, AdamW, {SHARE:.0%} of weights + gradients + states, {link / 1e6:.0f} MB/s: "
        "to this processor what its share of the switch is to a GPU of Harmony's machine, two of its four at work.",
    )


def _run(order: str, count: int, steps: int, link: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.harmony", order, str(count), str(steps), str(link)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def _train(order: str, count: int, steps: int, link: float) -> dict[str, Any]:
    import time

    import torch

    import vtensor
    from vtensor import planning

    weights = (12 * WIDTH * WIDTH * LAYERS + 500 * WIDTH) * 4
    budget = int(weights * 4 * SHARE)
    torch.manual_seed(0)
    vtensor.enable(device="cpu", budget=budget, link=link)
    model = language_model(LAYERS, WIDTH, 500, LENGTH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    trainer = vtensor.Harmony(model, optimizer, loss=loss_of, microbatches=count)
    losses, seconds, before = [], [], {}
    for _ in range(steps):
        tokens = torch.randint(0, 500, (count, LENGTH))
        before = vtensor.memory_stats()
        begun = time.perf_counter()
        packs = order == "packs"
        losses.append((trainer.step(tokens) if packs else ordinary_step(model, optimizer, tokens, count)).item())
        seconds.append(time.perf_counter() - begun)
        planning.wait_for_plan()
    stats = vtensor.memory_stats()
    warm = min(WARM, steps - 1)
    return {
        "weights": sum(p.numel() * p.element_size() for p in model.parameters()),
        "budget": budget,
        "in": stats["moved_in_bytes"] - before["moved_in_bytes"],
        "out": stats["moved_out_bytes"] - before["moved_out_bytes"],
        "seconds": statistics.median(seconds[warm:]),
        "foreseen": stats["predicted_step_seconds"],
        "planned": f"{stats['planned_iterations']} of {stats['iterations']}",
        "losses": losses[:ORDINARY],  # not the weights: who hands them to NumPy hands them out for good
    }


if __name__ == "__main__":
    print(json.dumps(_train(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))))
