"""Training in the order of packs beside the ordinary loop over microbatches, under the same budget (V2, V3).

Covers: bytes moved and seconds of a step, by the number of microbatches; what the plan promised of it, what the
simulator says by the times of the step's own operations (``foresight``), and the least it could take.

Over such a link a step of the ordinary loop takes minutes, and until it has a plan twice as many. So its plan is made
first, of an iteration recorded without the link.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .edge import shared_link_here
from .microbatches import language_model, loss_of, ordinary_step
from .record import Row, write
from .steps import MIB

LAYERS, WIDTH, LENGTH = 24, 512, 32
SHARE = 0.3  # of weights, gradients and states
WARM, STEPS = 5, 8  # of the order of packs: until it follows a plan, and in all
ORDINARY = 2  # after one of a single microbatch, that has the optimizer make its states
CHUNK = 2 * MIB


def run() -> None:
    """Each order in a process of its own, for 16 and 64 microbatches.

    That of packs also over a link twice as fast, and as Harmony has it: with layers that run again in backward.
    """
    rows: list[Row] = []
    link = shared_link_here()
    again = _run("again", 16, STEPS, link)
    foreseen = [
        _foreseen(16, 2 * link, _run("packs", 16, STEPS, 2 * link)),
        _foreseen(16, link, again, again=True),
    ]
    for count in (16, 64):
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "trace.npz"
            _run("record", count, 3, link, trace)
            plan = _planned(trace, link)
            found = {
                "packs": _run("packs", count, STEPS, link),
                "ordinary": _run("ordinary", count, ORDINARY, link, plan),
            }
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
            "identical": "yes" if packs["losses"] == ordinary["losses"] else "NO",
        })  # fmt: skip
        foreseen.append(_foreseen(count, link, packs))
        if count == 16:
            foreseen[-1]["measured / the same with layers run again"] = round(
                packs["seconds"] * again["bound"] / again["seconds"], 3
            )
        print(rows[-1], foreseen[-1], flush=True)
    write(
        "harmony_foresight",
        foreseen,
        "The order of packs, as above: measured steps beside what the plan promised of them, what the simulator says "
        "by the times of their own operations (goal within 10 %), and the longest of computing and the copies of each "
        "lane (V3; goal 1.10); and the least of any plan for this order, beside the same. The last column holds a step "
        "whose layers do not run again against the longest of the one whose layers do, as Harmony has it.",
    )
    write(
        "harmony",
        rows,
        f"{LAYERS} layers of a GPT-2 type, AdamW, {SHARE:.0%} of weights + gradients + states, {link / 1e6:.0f} MB/s: "
        "to this processor what its share of the switch is to a GPU of Harmony's machine, two of its four at work.",
    )


def _foreseen(count: int, link: float, packs: dict[str, Any], *, again: bool = False) -> Row:
    return {
        "microbatches": count, "link (MB/s)": round(link / 1e6), "recompute": again,
        "packs (s)": round(packs["seconds"], 2),
        "measured / promised": round(packs["seconds"] / packs["promised"], 3) if packs["promised"] else "",
        "measured / foreseen": packs["foreseen"],
        "measured / max(computing, copies)": packs["bound"], "no plan below": packs["least"],
        "planned": packs["planned"],
    }  # fmt: skip


def _run(order: str, count: int, steps: int, link: float, file: Path | None = None) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.harmony", order, str(count), str(steps), str(link), str(file or "")]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def _planned(file: Path, link: float) -> Path:
    """The file of the best plan for the ordinary loop."""
    import lgm

    plan = lgm.analyze(lgm.load_trace(file), lgm.Device(_budget() // CHUNK, link, link, switch=8e-6), recompute="auto")
    lgm.save_plan(plan, saved := file.with_name("plan.npz"))
    return saved


def _budget() -> int:
    weights = (12 * WIDTH * WIDTH * LAYERS + 500 * WIDTH) * 4
    return int(weights * 4 * SHARE)


def _train(order: str, count: int, steps: int, link: float, file: str) -> dict[str, Any]:
    """`file`: the plan to follow, or where what is recorded is written."""
    import time

    import torch

    import vtensor
    from vtensor import planning

    from .foresight import of_last_step

    torch.manual_seed(0)
    budget, recorded = _budget(), order == "record"
    ways: dict[str, Any] = {"policy": "lru"} if recorded else {"link": link, "plan": file or None}
    vtensor.enable(device="cpu", budget=budget, chunk=CHUNK, **ways)
    model = language_model(LAYERS, WIDTH, 500, LENGTH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    trainer = vtensor.Harmony(model, optimizer, loss=loss_of, microbatches=count, recompute=order == "again")
    losses, seconds, before, foreseen = [], [], {}, []
    ordinary_step(model, optimizer, torch.randint(0, 500, (1, LENGTH)), 1)
    if recorded:
        vtensor.record()
    for _ in range(steps):
        tokens = torch.randint(0, 500, (count, LENGTH))
        before = vtensor.memory_stats()
        begun = time.perf_counter()
        packs = order in ("packs", "again")
        losses.append((trainer.step(tokens) if packs else ordinary_step(model, optimizer, tokens, count)).item())
        seconds.append(time.perf_counter() - begun)
        if packs and vtensor.memory_stats()["planned_iterations"] > before["planned_iterations"]:
            foreseen.append((seconds[-1], of_last_step()))
        planning.wait_for_plan()
    if recorded:
        vtensor.save_trace(file)
    stats = vtensor.memory_stats()
    warm = min(WARM, steps - 1)
    return {
        "weights": sum(p.numel() * p.element_size() for p in model.parameters()),
        "budget": budget,
        "in": stats["moved_in_bytes"] - before["moved_in_bytes"],
        "out": stats["moved_out_bytes"] - before["moved_out_bytes"],
        "seconds": statistics.median(seconds[warm:]),
        "promised": stats["predicted_step_seconds"],
        "foreseen": _middle(took / said.step for took, said in foreseen if said),
        "bound": _middle(took / said.bound for took, said in foreseen if said),
        "least": _middle(said.least() / said.bound for _, said in foreseen[-1:] if said),
        "planned": f"{stats['planned_iterations']} of {stats['iterations']}",
        "losses": losses[:ORDINARY],  # not the weights: who hands them to NumPy hands them out for good
    }


def _middle(ratios: Iterable[float]) -> float | None:
    return round(statistics.median(known), 3) if (known := list(ratios)) else None


if __name__ == "__main__":
    print(json.dumps(_train(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), sys.argv[5])))
