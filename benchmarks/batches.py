"""Larger batches in the memory of a smaller one (R7), and less real memory with nothing copied (R8).

Covers: DELTA's headline on unmodified models: what an image costs at twice and four times the batch, at the memory
plain PyTorch needs for the batch; ``recompute="only"`` beside ``torch.utils.checkpoint``.
Leaves: fixed batches at less memory (``plans``, ``remaking``).
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import lgm
from lgm.fitting import GPUS, on_gpu
from lgm.iteration import analyze_lifetimes
from lgm.records import HOST_COSTS
from vtensor.demo.processes import Worker, measure_peak

from .record import Row, metadata, write
from .steps import MIB

WARM, STEPS = 3, 9


def larger(link: float) -> None:
    """R7: run under an edge GPU's link here, and foreseen on a modelled RTX 3060."""
    rows: list[Row] = []
    gpu = GPUS["rtx3060-laptop"]
    with tempfile.TemporaryDirectory() as scratch:
        for name in ("resnet50", "resnet101"):
            small = _trace(name, scratch)
            budget = analyze_lifetimes(small).peak * small.chunk_bytes
            there = on_gpu(small, gpu)
            room = analyze_lifetimes(there).peak
            for times in (2, 4):
                trace = _trace(f"{name}*{times}", scratch)
                device = lgm.Device(budget // trace.chunk_bytes, link, link, **HOST_COSTS)
                plan = lgm.analyze(trace, device, recompute="auto")
                path = f"{scratch}/plan.npz"
                lgm.save_plan(plan, path)
                options = {"budget": budget, "link": f"{link / 1e6:.0f}MB/s", "plan": path}
                took, final = _pairs(f"{name}*{times}", options, name)
                many = on_gpu(small, gpu, batch=times)
                foreseen = lgm.analyze(many, lgm.Device(room, gpu.link, gpu.link), recompute="auto").prediction
                stats = final["stats"]
                rows.append({
                    "model": name, "batch": f"{times} x",
                    "wants (MiB)": round(analyze_lifetimes(trace).peak * trace.chunk_bytes / MIB),
                    "budget (MiB)": round(budget / MIB), "held (MiB)": round(stats["held_bytes.peak"] / MIB),
                    "image / image of plain": round(took / times, 3),
                    "foreseen": round(plan.prediction.step_seconds / times / small.seconds, 3),
                    "modelled RTX 3060": round(foreseen.step_seconds / times / there.seconds, 3),
                    "copied (MiB/step)": round(stats["moved_out_bytes"] / STEPS / MIB),
                    "recomputed (MiB/step)": round(stats["made_bytes"] / STEPS / MIB),
                    "planned": f"{stats['planned_iterations']} of {stats['iterations']}",
                })  # fmt: skip
                print(rows[-1], flush=True)
    note = f"Batches b times as large at the memory plain PyTorch needs for one (R7), {link / 1e6:.0f} MB/s each way."
    write("batches", rows, note)


def _trace(name: str, folder: str) -> lgm.Trace:
    path = Path(folder) / "trace.npz"
    command = [sys.executable, "-m", "benchmarks.traces", name, str(path), metadata()["commit"]]
    subprocess.run(command, check=True)
    return lgm.load_trace(path)


def _pairs(name: str, options: dict[str, Any], other: str) -> tuple[float, dict[str, Any]]:
    """Median ratio of a step under a budget to a plain step of the other, and the former's last words."""
    bounded, plain = Worker(name, STEPS, options, settled=WARM), Worker(other, STEPS)
    try:
        pairs = [(bounded.step()["seconds"], plain.step()["seconds"]) for _ in range(STEPS)]
        return statistics.median(a / b for a, b in pairs[WARM:]), bounded.finish()
    finally:
        bounded.stop()
        plain.stop()


def only() -> None:
    """R8: GPT-2's type with nothing copied, at 45 % of its peak and at that of checkpoints per block."""
    rows: list[Row] = []
    peak, by_hand = measure_peak("gpt2"), measure_peak("gpt2", checkpointing=True)
    for budget in (int(peak * 0.45), by_hand):
        options = {"budget": budget, "recompute": "only"}
        sides = {
            "plain": Worker("gpt2", STEPS),
            "checkpoint": Worker("gpt2", STEPS, None, True),
            "only": Worker("gpt2", STEPS, options, settled=WARM),
        }
        seconds: dict[str, list[float]] = {way: [] for way in sides}
        try:
            for step in range(STEPS):
                for way in sides if step % 2 else reversed(sides):
                    seconds[way].append(sides[way].step()["seconds"])
            final = {way: side.finish() for way, side in sides.items()}
        finally:
            for side in sides.values():
                side.stop()

        def ratio(a: str, b: str, seconds: dict[str, list[float]] = seconds) -> float:
            return round(statistics.median(x / y for x, y in zip(seconds[a][WARM:], seconds[b][WARM:], strict=True)), 3)

        stats = final["only"]["stats"]
        dropped = stats["dropped_bytes.peak"]
        saved = final["plain"]["peak_rss"] - final["only"]["peak_rss"]
        rows.append({
            "budget (MiB)": round(budget / MIB), "of the peak": f"{budget / peak:.0%}",
            "held (MiB)": round(stats["held_bytes.peak"] / MIB),
            "only / plain": ratio("only", "plain"), "checkpoint / plain": ratio("checkpoint", "plain"),
            "only / checkpoint": ratio("only", "checkpoint"),
            "peak RSS, plain (MiB)": round(final["plain"]["peak_rss"] / MIB),
            "checkpoint (MiB)": round(final["checkpoint"]["peak_rss"] / MIB),
            "only (MiB)": round(final["only"]["peak_rss"] / MIB),
            "saved / dropped": round(saved / dropped, 3), "copied (MiB)": round(stats["moved_out_bytes"] / MIB),
            "planned": f"{stats['planned_iterations']} of {stats['iterations']}",
            "identical": "yes" if final["only"]["digest"] == final["plain"]["digest"] else "NO",
        })  # fmt: skip
        print(rows[-1], flush=True)
    write("only", rows, "GPT-2's type with nothing copied beside torch.utils.checkpoint per block (R8).")
