"""No plan beats the bound over all mixes of copying and recomputing, and some come near."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import lgm
from lgm.bounds import least_seconds_in_windows, least_seconds_of_any_mix
from lgm.iteration import analyze_lifetimes

from .random_traces import CHUNK, build, first_of, lawless, training
from .test_recompute import with_calls

TRACES = Path(__file__).resolve().parent.parent.parent / "traces"


@pytest.mark.parametrize("block", first_of(4, quick=1))
def test_no_plan_beats_it(block: int) -> None:
    above = 0
    for seed in range(3 * block, 3 * (block + 1)):
        trace = with_calls(lawless(seed) if seed % 2 else training(3 + seed % 5, seed), seed)
        life = analyze_lifetimes(trace)
        budget = max(int(life.needed.max()), life.peak * (2 + seed % 3) // 5, 1)
        for speed in (2e5, 2e6):
            device = lgm.Device(budget, speed, speed, tax=(seed % 3) * 1e-8)
            bound = least_seconds_of_any_mix(trace, device, steps=200)
            for recompute in ("never", "auto", "only"):
                try:
                    plan = lgm.analyze(trace, device, recompute=recompute)  # type: ignore[arg-type]
                except lgm.InfeasibleError:
                    continue
                assert plan.prediction.step_seconds >= bound * (1 - 1e-9), (seed, speed, recompute)
            above += bound > trace.seconds * 1.01
    assert above >= 1


@pytest.mark.parametrize("seed", [251, 384])
def test_what_a_row_waits_for_may_come_beside_what_leaves_at_it(seed: int) -> None:
    trace = lawless(seed)
    life = analyze_lifetimes(trace)
    device = lgm.Device(max(int(life.needed.max()), (int(life.needed.max()) + life.peak) // 2), 2e4, 2e4)
    bound = least_seconds_of_any_mix(trace, device, steps=200)
    assert trace.seconds < bound <= lgm.analyze(trace, device).prediction.step_seconds


def test_by_hand() -> None:
    """Ten chunks are filled, and read in the opposite order, 1 ms each; five fit."""
    n, first = 20, 10
    uses = [(row, row, 0, 1, 1) for row in range(first)] + [(n - 1 - t, t, 0, 1, 0) for t in range(first)]
    trace = build(n, [(CHUNK, t, n - 1 - t) for t in range(first)], uses)
    slow, fast = (lgm.Device(5, CHUNK / seconds, CHUNK / seconds) for seconds in (8e-3, 1e-4))
    assert least_seconds_of_any_mix(trace, fast) == pytest.approx(trace.seconds)
    # 40 ms out while it grows, 40 ms in while it shrinks: two windows in a row.
    assert 70e-3 < least_seconds_of_any_mix(trace, slow, windows=2, steps=2000) <= 80e-3 + 1e-9
    calls = replace(
        trace, call_first=np.arange(n), call_last=np.arange(n), call_again=(np.arange(n) < first).astype(int)
    )
    # Recomputed instead, each takes 1 ms. One can be copied out and in meanwhile.
    bound = least_seconds_of_any_mix(calls, slow, steps=2000)
    assert trace.seconds + 3e-3 < bound <= trace.seconds + 4e-3 + 1e-9
    plan = lgm.analyze(calls, slow, recompute="auto")
    assert bound <= plan.prediction.step_seconds <= 1.3 * bound


@pytest.mark.parametrize("name", ["vit", "resnet50"])
def test_recorded_iterations(name: str) -> None:
    """What copies alone cannot reach a mix may; what no mix can reach copies cannot."""
    trace = lgm.load_trace(TRACES / f"{name}.npz")
    life = analyze_lifetimes(trace)
    device = lgm.Device(max(int(life.peak * 0.35), int(life.needed.max())), 800e6, 800e6)
    mix = least_seconds_of_any_mix(trace, device)
    assert trace.seconds * 1.05 < mix <= least_seconds_in_windows(trace, device, life)
    assert mix <= lgm.analyze(trace, device).prediction.step_seconds


def test_where_everything_fits_it_is_computing() -> None:
    trace = with_calls(training(5, 1), 1)
    device = lgm.Device(analyze_lifetimes(trace).peak, 1e6, 1e6)
    assert least_seconds_of_any_mix(trace, device) == trace.seconds
