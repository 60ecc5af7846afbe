"""What an iteration takes in less memory: here, at several budgets; and on devices of the memories there are, to choose
one before it is bought.

Covers: what is left for tensors, the step there, the largest batch; what each way to leave would take.
Leaves: speeds (``gpus``), plans (``analysis``).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import get_args

from ..analysis import Recompute, analyze
from ..errors import InfeasibleError
from ..iteration.lifetimes import Lifetimes, analyze_lifetimes
from ..progress import Progress, silent
from ..records.model import Device, Plan, Trace
from ..records.units import format_bytes, format_seconds, share_of
from .gpus import Gpu, Numbers, on_gpu

__all__ = ["LARGEST", "by_budget", "by_size", "by_way", "largest_batches"]

SIZES = (4, 6, 8, 12, 16, 24)  # GiB of cards that people have
_SHARES = (1.0, 0.75, 0.5, 0.35, 0.25)
_MANY_SHARES = (0.9, 0.75, 0.6, 0.5, 0.4, 0.35, 0.3, 0.25, 0.2, 0.15, 0.1)
_WAYS: dict[Recompute, str] = {"never": "copied only", "only": "recomputed only", "auto": "both"}
_COLUMNS = f"{'a step':>11} {'of plain':>9} {'copied':>12} {'recomputed':>12}"
_CONTEXT = 600 << 20  # of CUDA and its libraries; a guess: 400 to 800 MiB were seen
_MOST = 1.1  # of computing alone: what a larger batch may cost an image
LARGEST = 64  # times the recorded batch: no larger one is looked for
_PAGE = 1 << 16
_BESIDE = "unmanaged_bytes"


class _Sizes:
    """Of one GPU; what was found for a batch, and for a memory, is kept."""

    def __init__(self, trace: Trace, gpu: Gpu, numbers: Numbers, chunk_bytes: int | None = None) -> None:
        self.gpu = gpu
        self.at: Callable[[int], Trace] = functools.cache(lambda batch: on_gpu(trace, gpu, numbers, batch, chunk_bytes))
        self.plan = functools.cache(self._plan)

    def _plan(self, room: int, batch: int) -> Plan | None:
        """Of a batch so many times as large; None if no plan works."""
        trace = self.at(batch)
        chunks = room // trace.chunk_bytes
        if chunks < 1:
            return None
        try:
            device = Device(chunks, self.gpu.copies, self.gpu.copies)
            return analyze(trace, device, recompute="auto" if self.gpu.link else "only")
        except InfeasibleError:
            return None

    def largest(self, room: int, least: int, most: float = _MOST) -> int:
        """The largest batch, of `least` and more, that costs an image no more than `most` of computing; 0 if none."""

        def works(batch: int) -> bool:
            trace = self.at(batch)
            if analyze_lifetimes(trace).peak * trace.chunk_bytes <= room:
                return True
            plan = self.plan(room, batch)
            return plan is not None and plan.prediction.step_seconds <= most * plan.recorded.seconds

        return _largest(works, least)


def _largest(works: Callable[[int], bool], least: int) -> int:
    """By doubling, then by halves, to an eighth of it; 0 if not even `least` works."""
    if least >= LARGEST:
        return least
    if not works(least):
        return 0
    good, bad = least, 2 * least
    while good < LARGEST and works(bad):
        good, bad = bad, 2 * bad
    while good < LARGEST and bad - good > max(good // 8, 1):
        middle = (good + bad) // 2
        good, bad = (middle, bad) if works(middle) else (good, middle)
    return min(good, LARGEST)


def _cells(plan: Plan | None, plain: Trace) -> str:
    """What stands under `_COLUMNS`."""
    if plan is None:
        return f"{'-':>11} {'-':>9} {'-':>12} {'-':>12}"
    p = plan.prediction
    made = 0 if plan.remaking is None else int(plan.recorded.tensor_bytes[plan.remaking.make_tensor].sum())
    moved = format_bytes((p.out_chunks + p.in_chunks) * plan.trace.chunk_bytes)
    times = p.step_seconds / plain.seconds
    return f"{format_seconds(p.step_seconds):>11} {times:>9.2f} {moved:>12} {format_bytes(made):>12}"


def _budgets(life: Lifetimes, shares: tuple[float, ...]) -> list[int]:
    """Chunks: these shares of the peak, and the least that works."""
    least = int(life.needed.max())
    return [chunks for share in shares if (chunks := share_of(life.peak, share)) > least] + [least]


def by_budget(
    trace: Trace, device: Device, beside: int, pressed: Trace | None = None, progress: Progress = silent
) -> str:
    """A row for each of several budgets on the device that the trace was recorded on, the smallest there is the last.

    Parameters
    ----------
    trace
        As recorded where everything fits.
    device
        Its budget does not matter.
    beside
        Bytes that no budget counts: tensors too small to be managed.
    pressed
        The same iteration as recorded where not everything fits: computing takes longer there, where it is observed and
        finds its memory in other places each time.
    """
    life = analyze_lifetimes(trace)
    lines = [
        f"  peak {format_bytes(life.peak * trace.chunk_bytes)}, and {format_bytes(beside)} in small, unmanaged "
        f"tensors; {format_seconds(trace.seconds)} a step without a budget",
        f"  {'budget':>12} {'of the peak':>12} {'incl. small':>12} {_COLUMNS}",
    ]
    budgets = _budgets(life, _SHARES)
    for k, chunks in enumerate(budgets):
        progress("budgets", k / len(budgets))
        try:
            there = trace if pressed is None or chunks >= life.peak else pressed
            plan = analyze(there, dataclasses.replace(device, budget_chunks=chunks), recompute="auto")
        except InfeasibleError:
            plan = None
        size = chunks * trace.chunk_bytes
        share, whole = f"{chunks / life.peak:.0%}", format_bytes(size + beside)
        lines.append(f"  {format_bytes(size):>12} {share:>12} {whole:>12} {_cells(plan, trace)}")
    progress("budgets", 1.0)
    return "\n".join(lines)


def by_way(
    trace: Trace, device: Device, progress: Progress = silent, ways: tuple[Recompute, ...] = get_args(Recompute)
) -> str:
    """A row for each of many budgets, and a column for each way to leave: what a device must have before it is bought.

    Parameters
    ----------
    device
        Its budget does not matter.
    ways
        Which of ``lgm.analyze(recompute=...)`` are shown, each in a column.
    """
    life = analyze_lifetimes(trace)
    budgets = _budgets(life, _MANY_SHARES)
    columns = [way for way in _WAYS if way in ways]
    lines = [
        f"  peak {format_bytes(life.peak * trace.chunk_bytes)}, computing {format_seconds(trace.seconds)}; "
        f"no budget below {format_bytes(budgets[-1] * trace.chunk_bytes)} works",
        "  a step takes, of computing alone:",
        f"  {'budget':>12} {'of the peak':>12}" + "".join(f"{_WAYS[way]:>17}" for way in columns),
    ]
    for k, budget in enumerate(budgets):
        cells = []
        for j, way in enumerate(columns):
            try:
                plan = analyze(trace, dataclasses.replace(device, budget_chunks=budget), recompute=way)
                cells.append(f"{plan.prediction.step_seconds / trace.seconds:.3f} x")
            except InfeasibleError:
                cells.append("-")
            progress("fit", (k + (j + 1) / len(columns)) / len(budgets))
        size = format_bytes(budget * trace.chunk_bytes)
        lines.append(f"  {size:>12} {budget / life.peak:>12.0%}" + "".join(f"{cell:>17}" for cell in cells))
    return "\n".join(lines)


def largest_batches(
    trace: Trace, gpu: Gpu, limits: tuple[float, ...], chunk_bytes: int, numbers: Numbers = "fp32"
) -> tuple[int, ...]:
    """How many times the recorded batch a GPU trains, up to 64: with plain PyTorch, and within each limit.

    Parameters
    ----------
    trace
        As recorded, on a processor.
    limits
        What a sample may cost beside one of the same batch where everything fits, the smallest first.
    chunk_bytes
        Of the device. Plain PyTorch is counted in pieces of 64 KiB.

    Raises
    ------
    LgmError
        If the trace does not say how fast its machine was.
    """
    room = gpu.memory - _CONTEXT - _small_tensors(trace)
    exact, sizes = _Sizes(trace, gpu, numbers, _PAGE), _Sizes(trace, gpu, numbers, chunk_bytes)

    def fits(batch: int) -> bool:
        return analyze_lifetimes(exact.at(batch)).peak * _PAGE <= room

    found = [_largest(fits, 1)]
    best = 0
    for limit in limits:
        best = max(sizes.largest(room, max(best, 1), limit), best)
        found.append(best)
    return tuple(found)


def _small_tensors(trace: Trace) -> int:
    """Bytes that no budget counts, if the trace says so."""
    beside = trace.meta.get(_BESIDE)
    return int(beside) if isinstance(beside, int | float) else 0


def by_size(trace: Trace, gpu: Gpu, numbers: Numbers = "fp32", progress: Progress = silent) -> str:
    """A row for each memory there is, from the smallest.

    Parameters
    ----------
    trace
        As recorded, on a processor.
    gpu
        Whose speeds are taken; its memory is the one that is varied.

    Raises
    ------
    LgmError
        If the trace does not say how fast its machine was.
    """
    small = _small_tensors(trace)
    sizes = _Sizes(trace, gpu, numbers)
    there = sizes.at(1)
    halved = " (in bf16 tensors are half as large)" if numbers == "bf16" else ""
    lines = [
        f"  {gpu.title} with other memories: times by arithmetic; {format_bytes(_CONTEXT)} for CUDA (guessed) and "
        f"{format_bytes(small)}{'' if _BESIDE in trace.meta else ' (not in this trace)'} of small tensors taken off",
        f"  peak {format_bytes(analyze_lifetimes(there).peak * there.chunk_bytes)}{halved}, computing "
        f"{format_seconds(there.seconds)} a step",
        f"  {'memory':>9} {'for tensors':>12} {_COLUMNS} {'largest batch at ' + format(_MOST, '.1f'):>22}",
    ]
    best = 0
    chosen = sorted({*SIZES, gpu.memory >> 30})
    for k, size in enumerate(chosen):
        room = (size << 30) - _CONTEXT - small
        progress("memories", k / len(chosen))
        found = sizes.plan(room, 1)
        batch = max(sizes.largest(room, max(best, 1)), best) if found is not None else 0
        best = max(best, batch)
        mark = "  <- this device" if size << 30 == gpu.memory else ""
        lines.append(
            f"  {size:>5} GiB {format_bytes(max(room, 0)):>12} {_cells(found, there)} {_times(batch):>22}{mark}"
        )
    progress("memories", 1.0)
    return "\n".join(lines)


def _times(batch: int) -> str:
    if not batch:
        return "-"
    return f"{LARGEST} x and more" if batch >= LARGEST else f"{batch} x as recorded"
