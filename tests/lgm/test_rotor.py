"""The fastest schedule of a chain against every schedule that holds what it keeps."""

from __future__ import annotations

import heapq

import numpy as np
import pytest

from lgm.checkpoints.rotor import Schedule, fill_tables
from lgm.errors import LgmError
from lgm.records.model import Floats

State = tuple[int, frozenset[int], frozenset[int], int]  # next backward, inputs held, layers kept, input passed on


def fastest(seconds: Floats, size: Floats, held: Floats, beside: Floats, memory: float) -> float:
    """The least time forward by trying every order of passing on, holding, keeping and going backward."""
    n = len(seconds)
    todo: list[tuple[float, int, State]] = [(0.0, 0, (n - 1, frozenset(), frozenset(), -1))]
    done: set[State] = set()
    while todo:
        time, _, state = heapq.heappop(todo)
        if state in done:
            continue
        done.add(state)
        b, inputs, kept, passed = state
        if b < 0:
            return time
        items = sum(held[k - 1] for k in inputs) + sum(size[k] for k in kept) + beside[b]
        steps: list[tuple[float, State]] = []
        for k in range(b + 1):
            stored = k == 0 or k in inputs or k - 1 in kept
            if stored or k == passed:
                of_input = 0.0 if stored else held[k - 1]
                if items + of_input + held[k] <= memory and k < b:
                    steps.append((seconds[k], (b, inputs, kept, k + 1)))
            if k == passed and not stored and items + held[k - 1] <= memory:
                steps.append((0.0, (b, inputs | {k}, kept, -1)))
            if stored and k not in kept and items + size[k] <= memory:
                steps.append((seconds[k], (b, inputs, kept | {k}, -1)))
            if k == b and stored and k in kept and items <= memory:
                steps.append((0.0, (b - 1, inputs - {k}, kept - {k}, -1)))
        for more, after in steps:
            heapq.heappush(todo, (time + more, len(done) * 100 + len(todo), after))
    return np.inf


def run(schedule: Schedule, seconds: Floats, size: Floats, held: Floats, beside: Floats) -> tuple[float, float]:
    """Seconds and peak of a schedule, by following it pass by pass."""
    n = len(seconds)
    time = peak = 0.0
    inputs: set[int] = set()
    kept: set[int] = set()
    for at in [n, *range(n - 1, -1, -1)]:
        b = min(at, n - 1)

        def holds(extra: float = 0.0, b: int = b) -> float:
            return sum(held[k - 1] for k in inputs) + sum(size[k] for k in kept) + beside[b] + extra

        new_kept = [k for k in range(n) if schedule.kept[k] == at]
        new_inputs = [k for k, of in schedule.checkpoints.items() if of == at]
        if new_kept:
            last = max(new_kept)
            first = max(k for k in range(last + 1) if k == 0 or k in inputs or k - 1 in kept)
            first = min([first, *new_kept, *(k - 1 for k in new_inputs)])
            for k in range(first, last + 1):
                time += seconds[k]
                if k in new_kept:
                    kept.add(k)
                    peak = max(peak, holds())
                else:
                    stored = k == 0 or k in inputs or k - 1 in kept
                    peak = max(peak, holds(held[k] + (0.0 if stored else held[k - 1])))
                if k + 1 in new_inputs:
                    inputs.add(k + 1)
        if at < n:
            assert b in kept
            peak = max(peak, holds())
            kept.discard(b)
            inputs.discard(b)
    return time, peak


@pytest.mark.parametrize("block", range(10))
def test_nothing_is_faster(block: int) -> None:
    for seed in range(20 * block, 20 * block + 20):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 6))
        seconds = rng.integers(1, 5, n).astype(float)
        size, held, beside = (rng.integers(0, 4, n).astype(float) for _ in range(3))
        memory = float(size.sum() + held.sum() + beside.max() + 1)
        tables = fill_tables(seconds, size, held, beside, memory, int(memory))
        for slots in range(int(memory) + 1):
            least = fastest(seconds, size, held, beside, slots)
            if np.isinf(least):
                assert slots < tables.fewest_slots(), seed
                continue
            schedule = tables.schedule(slots)
            assert schedule.seconds == least, (seed, slots)
            assert run(schedule, seconds, size, held, beside)[0] == least, (seed, slots)
            assert run(schedule, seconds, size, held, beside)[1] <= slots, (seed, slots)


def test_more_memory_is_never_slower() -> None:
    rng = np.random.default_rng(0)
    rows = [rng.lognormal(0, 1, 40) for _ in range(4)]
    tables = fill_tables(*rows, memory=float(rows[1].sum() + rows[3].max()))
    times = [tables.schedule(slots).seconds for slots in range(tables.fewest_slots(), tables.slots + 1)]
    assert times == sorted(times, reverse=True)
    assert times[0] > 1.5 * times[-1]
    with pytest.raises(LgmError, match="slots of memory"):
        tables.schedule(tables.fewest_slots() - 1)


@pytest.mark.parametrize("row", [[], [-1.0], [float("inf")], [[1.0]]])
def test_what_is_no_chain_is_refused(row: object) -> None:
    with pytest.raises(LgmError, match="a chain is"):
        fill_tables(row, row, row, row, 1.0)  # type: ignore[arg-type]
    with pytest.raises(LgmError, match="a chain is"):
        fill_tables(np.ones(2), np.ones(2), np.ones(2), np.ones(2), 0.0)
