"""What a GPU would take, by arithmetic: recorded iterations on a modelled device (``kernels/testing/driver_model.h``).

Covers: replaying a trace on the real engine with and without a plan, with an H100's costs of calls (C3m).
Leaves: what a real GPU takes (``gpu_check``), how long an operation takes there (``lgm.fitting``). Nothing but the
engine, the plan runner and the planner is real, and nothing is measured by a clock: the figures are the same on every
machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import lgm
from lgm.bounds import least_seconds_of_any_mix
from lgm.fitting import GPUS, Numbers, on_gpu
from lgm.iteration import analyze_lifetimes
from lgm.placing.orders import orders
from vtensor import native
from vtensor.planning.plans import install, to_plan_for
from vtensor.planning.recordings import make_recording

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
    room: int = 0
    """Things asked of a stream that are still to be done, until who asks for one more has to stand; 0: endless."""


# The first two as torch and CUDA usually have them. Mapping: a piece as measured with nothing else to do, 28 us to map
# and 17 to unmap (results/gpu_costs*); a call so that steps without a plan take as long as an H100's, where copies are
# under way meanwhile.
COSTS = Costs(launch_ns=5_000, call_ns=1_500, map_ns=80_000, piece_ns=22_000)


@dataclass(frozen=True)
class Run:
    seconds: float
    """The last iteration's."""
    planned: int
    """Iterations that followed a plan."""
    predicted: float
    """Seconds; 0 without a plan."""
    timed: float
    """Seconds of computing the newest plan was made with."""
    plans: int
    remaps: int
    """Of the last iteration."""
    host_waits: int
    made_again: int
    """Bytes, of the last iteration."""


def replay(
    trace: lgm.Trace,
    budget_chunks: int,
    speed: float,
    costs: Costs,
    *,
    plan: bool,
    iterations: int = 12,
    recompute: lgm.Recompute = "never",
) -> Run:
    """So many iterations of a trace on a device with `speed` bytes a second each way."""
    device = native.load().parts.Replay(
        trace, budget_chunks, speed, speed, costs.launch_ns, costs.call_ns, costs.map_ns, costs.piece_ns, costs.room
    )
    seconds, made, timed, plans = 0.0, None, 0.0, 0
    before = device.snapshot()
    for _ in range(iterations):
        before = device.snapshot()
        seconds = device.iteration()
        if device.boundary() and plan:
            recording = make_recording(device.recorded_iteration(), trace.chunk_bytes)
            seen = to_plan_for(device, recording.trace, lgm.Device(budget_chunks, speed, speed))
            made = lgm.analyze(recording.trace, seen, recompute=recompute)
            timed, plans = recording.trace.seconds, plans + 1
            install(device, orders(made, budget_chunks), recording)
    after = device.snapshot()
    return Run(
        seconds,
        device.planned,
        made.prediction.step_seconds if made is not None else 0.0,
        timed,
        plans,
        after["remaps"] - before["remaps"],
        after["host_waits"] - before["host_waits"],
        after["made_bytes"] - before["made_bytes"],
    )


NAMES = ("resnet50", "gpt2", "bert", "vit")
BATCH = {"fp32": 8, "bf16": 16}  # times the recorded one: the peak is some gigabytes


def case(name: str, gpu: str, numbers: Numbers) -> tuple[lgm.Trace, int]:
    """A model as it would be on a GPU, and its peak in chunks."""
    trace = on_gpu(lgm.load_trace(TRACES / f"{name}.npz"), GPUS[gpu], numbers, BATCH[numbers], chunk_bytes=16 << 20)
    return trace, analyze_lifetimes(trace).peak


def run() -> None:
    for gpu in ("h100", "rtx3060-laptop", "gtx1650"):
        rows: list[Row] = []
        for numbers in get_args(Numbers):
            for name in NAMES:
                rows += compare(name, *case(name, gpu, numbers), GPUS[gpu].link, numbers)
        note = f"Recorded iterations on a modelled {GPUS[gpu].title} (C3m): by arithmetic (lgm.fitting), no clock."
        write(f"modelled_{gpu}", rows, note)


def compare(name: str, trace: lgm.Trace, peak: int, speed: float, numbers: str) -> Iterator[Row]:
    plain = replay(trace, 4 * peak, speed, COSTS, plan=False).seconds
    for share in (0.75, 0.5, 0.35):
        budget = int(peak * share)
        lru = replay(trace, budget, speed, COSTS, plan=False)
        copied = replay(trace, budget, speed, COSTS, plan=True)
        mixed = replay(trace, budget, speed, COSTS, plan=True, recompute="auto")
        bound = least_seconds_of_any_mix(trace, lgm.Device(budget, speed, speed))
        row = {
            "model": name, "numbers": numbers, "peak (GiB)": round(peak * trace.chunk_bytes / 2**30, 1),
            "step (ms)": round(plain * 1e3, 1), "budget": f"{share:.0%}", "lru / plain": round(lru.seconds / plain, 3),
            "copied / plain": round(copied.seconds / plain, 3), "both / plain": round(mixed.seconds / plain, 3),
            "predicted / plain": round(mixed.predicted / plain, 3),
            "no plan beats / plain": round(bound / plain, 3), "mapped (chunks/step)": mixed.remaps,
            "recomputed (GiB/step)": round(mixed.made_again / 2**30, 1), "planned": mixed.planned,
        }  # fmt: skip
        print(row, flush=True)
        yield row
