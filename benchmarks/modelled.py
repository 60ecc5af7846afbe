"""What a GPU would take, by arithmetic: recorded iterations on a modelled device (``kernels/testing/driver_model.h``).

Covers: replaying a trace on the real engine with and without a plan, with an H100's costs of calls (C3m).
Leaves: what a real GPU takes (``gpu_check``). Kernels are as long as in the trace, scaled; nothing but the engine, the
plan runner and the planner is real, and nothing is measured by a clock: the figures are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import lgm
from lgm.lifetimes import analyze_lifetimes
from vtensor import native
from vtensor.plans import install
from vtensor.recorder import make_recording

from .record import Row, write

TRACES = Path(__file__).resolve().parent.parent / "traces"


@dataclass(frozen=True)
class Costs:
    """Nanoseconds of the host."""

    launch_ns: int = 0
    """Each operation, beside what the engine asks of the driver."""
    call_ns: int = 0
    """An event, a wait, a copy asked for."""
    map_ns: int = 0
    """Mapping or unmapping chunks side by side."""
    piece_ns: int = 0
    """Each of them."""


# The first two as torch and CUDA usually have them; mapping as measured (results/gpu_costs*).
H100 = Costs(launch_ns=5_000, call_ns=1_500, map_ns=30_000, piece_ns=2_000)


@dataclass(frozen=True)
class Run:
    seconds: float
    """The last iteration's."""
    planned: int
    """Iterations that followed a plan."""
    predicted: float
    """Seconds; 0 without a plan."""
    timed: float
    """Seconds of computing the plan was made with."""
    remaps: int
    """Of the last iteration."""
    host_waits: int


def replay(
    trace: lgm.Trace, budget_chunks: int, speed: float, costs: Costs, *, plan: bool, iterations: int = 10
) -> Run:
    """So many iterations of a trace on a device with `speed` bytes a second each way."""
    device = native.load().parts.Replay(
        trace, budget_chunks, speed, speed, costs.launch_ns, costs.call_ns, costs.map_ns, costs.piece_ns
    )
    seconds, made, timed = 0.0, None, 0.0
    before = device.snapshot()
    for _ in range(iterations):
        before = device.snapshot()
        seconds = device.iteration()
        if device.boundary() and plan:
            recording = make_recording(device.recorded_iteration(), trace.chunk_bytes)
            made = lgm.analyze(recording.trace, lgm.Device(budget_chunks, speed, speed))
            timed = recording.trace.seconds
            install(device, made, recording)
    after = device.snapshot()
    return Run(
        seconds,
        device.planned,
        made.prediction.step_seconds if made is not None else 0.0,
        timed,
        after["remaps"] - before["remaps"],
        after["host_waits"] - before["host_waits"],
    )


def like_a_gpu(name: str, seconds: float, copying: float) -> tuple[lgm.Trace, int, float]:
    """A trace whose step takes so long, its peak in chunks, and a link that carries as much in so long."""
    trace = lgm.load_trace(TRACES / f"{name}.npz")
    trace = replace(trace, op_ns=(trace.op_ns * (seconds / trace.seconds)).astype(np.int64))
    peak = analyze_lifetimes(trace).peak
    return trace, peak, peak * trace.chunk_bytes / copying


# Seconds of a step, and of copying the peak one way at 47 GB/s: what an H100 took, or would, in bf16.
MODELS = {"resnet50": (0.060, 0.112), "gpt2": (0.090, 0.243), "bert": (0.090, 0.170), "vit": (0.090, 0.170)}


def cases() -> Iterator[tuple[str, lgm.Trace, int, float]]:
    for name, (seconds, copying) in MODELS.items():
        yield (name, *like_a_gpu(name, seconds, copying))


def run() -> None:
    rows: list[Row] = []
    for name, trace, peak, speed in cases():
        plain = replay(trace, 4 * peak, speed, H100, plan=False)
        for share in (0.75, 0.5, 0.35):
            budget = int(peak * share)
            lru = replay(trace, budget, speed, H100, plan=False)
            planned = replay(trace, budget, speed, H100, plan=True)
            rows.append({
                "model": name, "budget": f"{share:.0%}",
                "lru / plain": round(lru.seconds / plain.seconds, 3),
                "plan / plain": round(planned.seconds / plain.seconds, 3),
                "predicted / plain": round(planned.predicted / plain.seconds, 3),
                "timed / plain": round(planned.timed / plain.seconds, 3),
                "mapped anew (chunks/step)": planned.remaps, "host waits/step": planned.host_waits,
            })  # fmt: skip
            print(rows[-1], flush=True)
    write("modelled", rows, "Recorded iterations on a modelled H100 (C3m): by arithmetic, no clock.")
