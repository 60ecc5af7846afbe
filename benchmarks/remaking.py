"""What making things again gives, beside copying alone: at an edge GPU's link, and as checkpoints that nobody wrote.

Covers: plans by both ways against plans that only copy (R5); plans of the best checkpoints on unmodified models (R9).
Leaves: the same on modelled GPUs (``modelled``).
"""

from __future__ import annotations

import statistics
import tempfile
from typing import Any

import lgm
from lgm.bounds import least_seconds_of_any_mix
from lgm.checkpoints import best_checkpoints
from lgm.iteration import analyze_lifetimes
from vtensor.demo.processes import Worker, measure_peak
from vtensor.demo.workloads import WORKLOADS

from .plans import TRACES, mean_row, race, ratio
from .record import Row, write
from .steps import MIB

WARM, STEPS = 3, 9


def edge(link: float, names: tuple[str, ...] = tuple(WORKLOADS)) -> None:
    """R5: six models, three budgets; plans come from the recorded traces.

    What a plan foresees is a ratio to computing alone. Plain torch is slower than that: it gives memory back to the
    system and takes it anew in each step. So measured and foreseen are compared where there is room for all ("room").
    """
    rows: list[Row] = []
    for name in names:
        trace = lgm.load_trace(TRACES / f"{name}.npz")
        life = analyze_lifetimes(trace)
        for share in (0.75, 0.5, 0.35):
            chunks = max(int(life.peak * share), int(life.needed.max()))
            device = lgm.Device(chunks, link, link, **lgm.records.HOST_COSTS)
            common = {"budget": chunks * trace.chunk_bytes, "link": f"{link / 1e6:.0f}MB/s"}
            room = {"budget": 2 * life.peak * trace.chunk_bytes}
            ways: dict[str, dict[str, Any] | None] = {"plain": None, "room": room}
            plans: dict[str, lgm.Plan] = {}
            with tempfile.TemporaryDirectory() as scratch:
                for way, recompute in (("copied", "never"), ("both", "auto")):
                    plans[way] = lgm.analyze(trace, device, recompute=recompute)  # type: ignore[arg-type]
                    lgm.save_plan(plans[way], f"{scratch}/{way}.npz")
                    ways[way] = {**common, "plan": f"{scratch}/{way}.npz"}
                sides = race(name, ways, STEPS)
            foreseen = {way: plan.prediction.step_seconds / trace.seconds for way, plan in plans.items()}
            measured = {way: ratio(sides, way, warm=WARM) for way in plans}
            room_ratio = ratio(sides, "both", "room", warm=WARM)
            stats = sides["both"].final["stats"]
            rows.append({
                "model": name, "budget": f"{share:.0%}",
                "copied: foreseen": round(foreseen["copied"], 3), "both: foreseen": round(foreseen["both"], 3),
                "no plan beats": round(least_seconds_of_any_mix(trace, device, windows=24) / trace.seconds, 3),
                "copied / plain": round(measured["copied"], 3), "both / plain": round(measured["both"], 3),
                "both / copied": round(ratio(sides, "both", "copied", warm=WARM), 3),
                "both / room": round(room_ratio, 3), "measured / foreseen": round(room_ratio / foreseen["both"], 3),
                "copied (MiB/step)": round(stats["moved_out_bytes"] / STEPS / MIB),
                "recomputed (MiB/step)": round(stats["made_bytes"] / STEPS / MIB),
                "planned": f"{stats['planned_iterations']} of {stats['iterations']}",
                "identical": "yes" if len({side.final["digest"] for side in sides.values()}) == 1 else "NO",
            })  # fmt: skip
            print(rows[-1], flush=True)
    note = f"Plans that copy and recompute beside plans that only copy (R5), {link / 1e6:.0f} MB/s each way."
    write("remaking_edge", [*rows, mean_row(rows)], note)


def checkpoints() -> None:
    """R9: checkpoints that nobody wrote, on unmodified models."""
    rows: list[Row] = []
    for name in ("resnet50", "gpt2", "unet", "mobilenet_v2"):
        trace = lgm.load_trace(TRACES / f"{name}.npz")
        best = best_checkpoints(trace)
        budget = best.plan.prediction.peak_chunks * trace.chunk_bytes
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/plan.npz"
            lgm.save_plan(best.plan, path)
            plain, kept = Worker(name, STEPS), Worker(name, STEPS, {"budget": budget, "plan": path}, settled=WARM)
            try:
                pairs = [(kept.step()["seconds"], plain.step()["seconds"]) for _ in range(STEPS)]
                got, expected = kept.finish(), plain.finish()
            finally:
                plain.stop()
                kept.stop()
        stats = got["stats"]
        by_hand = measure_peak(name, checkpointing=True) if name == "gpt2" else None
        rows.append({
            "model": name, "peak (MiB)": round(analyze_lifetimes(trace).peak * trace.chunk_bytes / MIB),
            "layers kept": f"{len(best.layers)} of {len(best.chain.rows)}",
            "predicted (MiB)": round(budget / MIB), "held (MiB)": round(stats["held_bytes.peak"] / MIB),
            "copied (MiB/step)": round(stats["moved_out_bytes"] / STEPS / MIB),
            "recomputed (MiB/step)": round(stats["made_bytes"] / STEPS / MIB),
            "predicted / computing": round(best.plan.trace.seconds / trace.seconds, 3),
            "step / plain": round(statistics.median(a / b for a, b in pairs[WARM:]), 3),
            "torch.utils.checkpoint per block (MiB)": "" if by_hand is None else round(by_hand / MIB),
            "planned": f"{stats['planned_iterations']} of {stats['iterations']}",
            "identical": "yes" if got["digest"] == expected["digest"] else "NO",
        })  # fmt: skip
        print(rows[-1], flush=True)
    write("checkpoints", rows, "Plans that keep the best layers of the forward pass and copy nothing (R9).")
