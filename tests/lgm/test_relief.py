"""Room before a rush: plans stay valid, none gets slower, and where tails are cheap room one gets faster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import lgm
from lgm import Device, Switches, Trace
from lgm.iteration import analyze_lifetimes
from lgm.planning import planner
from lgm.planning.relief import relieve
from lgm.validation import check

from .random_traces import CHUNK, build, lawless, training

LAYERS = 24


def rush() -> Trace:
    """A forward and a backward pass of few bytes, then an optimizer's step that needs more than the lane carries.

    Each weight is two and a quarter chunks, as are its two states; an activation is two chunks.
    """
    tensors, uses = [], []
    size = 2 * CHUNK + CHUNK // 4
    for layer in range(LAYERS):
        step = 2 * LAYERS + layer
        for _ in range(3):
            tensors.append((size, -1, -1))
        weight = 3 * layer
        uses += [(op, weight, 0, 3, 0) for op in (layer, 2 * LAYERS - 1 - layer)]
        uses += [(step, weight + k, 0, 3, 1) for k in range(3)]
    for layer in range(LAYERS):
        born, died = layer, 2 * LAYERS - 1 - layer
        tensors.append((2 * CHUNK, born, died))
        uses += [(born, len(tensors) - 1, 0, 2, 1), (died, len(tensors) - 1, 0, 2, 0)]
    seconds = [20_000_000] * (2 * LAYERS) + [2_000_000] * LAYERS
    return build(3 * LAYERS, tensors, uses, op_ns=seconds)


def device(share: float = 0.65, speed: float = 0.3e6) -> Device:
    return Device(int(analyze_lifetimes(rush()).peak * share), speed, speed)


def test_tails_make_room_for_what_a_rush_needs() -> None:
    plan = planner.analyze(rush(), device())
    relieved = relieve(plan)
    assert check(relieved) == ""
    assert relieved.prediction.step_seconds < 0.97 * plan.prediction.step_seconds
    assert relieved.trace is plan.trace and relieved.reservation == plan.reservation


def diluted(trace: Trace, times: int) -> Trace:
    """The same with so many operations for each, of which the first uses what that one did and the others nothing."""
    n = trace.operations * times
    last = np.where(trace.tensor_died < 0, -1, trace.tensor_died * times + times - 1)
    return replace(
        trace, op_name=np.repeat(trace.op_name, times), op_ns=np.repeat(trace.op_ns // times, times),
        op_last=np.arange(n), use_op=trace.use_op * times, tensor_died=last,
        tensor_born=np.where(trace.tensor_born < 0, -1, trace.tensor_born * times),
    )  # fmt: skip


@pytest.mark.parametrize("speed", [0.2e6, *(pytest.param(s, marks=pytest.mark.long) for s in (0.3e6, 0.5e6))])
def test_operations_that_move_nothing_take_no_effort_from_the_others(speed: float) -> None:
    few = relieve(planner.analyze(rush(), device(0.5, speed)))
    many = relieve(planner.analyze(diluted(rush(), 112), device(0.5, speed)))
    assert check(many) == ""
    assert many.prediction.step_seconds <= few.prediction.step_seconds


def test_room_where_it_is_needed_instead_of_at_all_times() -> None:
    reserved, bare = (planner.analyze(rush(), device(), reservation=chunks) for chunks in (40, 0))
    assert relieve(reserved).prediction.step_seconds <= relieve(bare).prediction.step_seconds
    assert relieve(reserved).reservation == 0


@pytest.mark.parametrize("make", [lawless, lambda seed: training(2 + seed % 7, seed)], ids=["lawless", "training"])
def test_no_plan_gets_slower(make: Callable[[int], Trace]) -> None:
    changed = 0
    for seed in range(12):
        trace = make(seed)
        life = analyze_lifetimes(trace)
        budget = max(int(life.needed.max()), int(life.peak * (0.4 + seed % 5 / 10)), 1)
        plan = planner.analyze(trace, Device(budget, 1e6, 0.5e6 + seed % 3 * 1e6))
        relieved = relieve(plan)
        assert check(relieved) == "", seed
        assert relieved is plan or relieved.prediction.step_seconds < plan.prediction.step_seconds, seed
        changed += relieved is not plan
    assert changed > 0


def test_what_is_made_again_stays() -> None:
    for seed in range(8):
        trace = training(6, seed)
        life = analyze_lifetimes(trace)
        budget = max(int(life.needed.max()), life.peak // 2)
        plan = lgm.analyze(trace, Device(budget, 0.3e6, 0.3e6), recompute="auto")
        assert check(plan) == "", seed
        again = relieve(plan)
        assert again.remaking is plan.remaking


def test_other_switches_and_plans_that_hardly_wait_are_left_alone() -> None:
    for switches in (Switches(costs="equal"), Switches(timing="on_demand", reservation="none")):
        plan = lgm.analyze(rush(), device(), switches)
        assert relieve(plan) is plan
    plan = lgm.analyze(rush(), device(0.9, 1e9))
    assert relieve(plan) is plan
