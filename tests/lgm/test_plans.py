"""Whole plans: every one is valid, every switch works, and each rule catches the plan that breaks it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import lgm
from lgm import Device, InvalidPlanError, Plan, Switches
from lgm.bounds import least_seconds, least_seconds_in_windows
from lgm.choosing.selection import select
from lgm.iteration import analyze_lifetimes
from lgm.placing.mapping import away_at_turn, layers
from lgm.records.rows import describe, nominal
from lgm.timing.moves import Moves, moves_of_plan
from lgm.timing.schedule import _leaves, _under_way
from lgm.timing.simulate import run_on_demand, run_plan
from lgm.validation import check, validate

from .random_traces import CHUNK, build, first_of, lawless, training

TRACES = sorted((Path(__file__).resolve().parents[2] / "traces").glob("*.npz"))


def device_for(trace: lgm.Trace, seed: int) -> Device:
    life = analyze_lifetimes(trace)
    rng = np.random.default_rng(seed)
    least = max(int(life.needed.max()), 1)
    budget = int(rng.integers(least, max(life.peak, least) + 1))
    return Device(budget, 1e6 * rng.choice([0.3, 1, 3]), 1e6 * rng.choice([0.3, 1, 3]))


@pytest.mark.parametrize("block", first_of(20, quick=2))
def test_every_plan_is_valid_and_its_moves_are_found_again(block: int) -> None:
    for seed in range(block * 50, block * 50 + 50):
        trace = lawless(seed) if seed % 4 else training(2 + seed % 7, seed)
        plan = lgm.analyze(trace, device_for(trace, seed))
        assert check(plan) == "", seed
        life, moves = moves_of_plan(plan)
        assert run_plan(trace, plan.device, life, moves)[0] == plan.prediction, seed


# What "auto" of costs and timing tries; that one of these comes out is a test below.
PRODUCT = list(
    itertools.product(
        ("moves", "equal"),
        ("copies", "none"),
        ("optimal", "sweep"),
        ("chunk", "tensor"),
        ("packed", "just_in_time", "on_demand"),
        ("auto", "none"),
        ("keep", "none"),
        ("simulated", "none"),
    )
)  # fmt: skip


# One of five has each pair of choices.
@pytest.mark.parametrize(
    "switches",
    [pytest.param(s, marks=[pytest.mark.long] * (nth % 5 > 0), id="-".join(s)) for nth, s in enumerate(PRODUCT)],
)
def test_every_switch_gives_a_valid_plan(switches: tuple[str, ...]) -> None:
    for seed in range(2):
        trace = lawless(seed) if seed % 2 else training(3 + seed, seed)
        life = analyze_lifetimes(trace)
        device = device_for(trace, seed)
        if "tensor" in switches:  # whole tensors may need more than one operation does
            device = dataclasses.replace(device, budget_chunks=max(device.budget_chunks, int(life.needed.max())))
        plan = lgm.analyze(trace, device, Switches(*switches))  # type: ignore[arg-type]
        assert check(plan) == "", seed


def test_a_tail_leaves_before_whole_chunks() -> None:
    # `a` ends an eighth into its second chunk. While it is not needed, one chunk must be away.
    trace = build(4, [(CHUNK + CHUNK // 8, 0, 3), (CHUNK, 1, 2)], [(2, 1, 0, 1, 0), (3, 0, 0, 2, 0)])
    plan = lgm.analyze(trace, Device(2, 1e6, 1e6))
    assert (plan.out_first.tolist(), plan.out_last.tolist()) == ([1], [2])
    assert moves_of_plan(plan)[1].out_bytes.tolist() == [CHUNK // 8]
    whole = lgm.analyze(trace, Device(2, 1e6, 1e6), Switches(granularity="tensor"))
    assert (whole.out_first.tolist(), whole.out_last.tolist()) == ([0], [2])


def test_a_gap_counts_once_its_copy_can_have_ended() -> None:
    # `a` is needed at 5, `b` at 6; for operation 3 one of them must be away. `b` has the farther next use, but was made
    # at 2: its copy takes 2 ms and operation 3 would wait for it. `a` can leave since 1.
    uses = [(5, 0, 0, 1, 0), (6, 1, 0, 1, 0)]
    trace = build(7, [(CHUNK, 0, 5), (CHUNK, 2, 6), (CHUNK, 3, 3)], uses)
    device = Device(2, CHUNK / 2e-3, CHUNK / 1e-3)
    for leads, leaves, seconds in (("copies", 0, 7e-3), ("none", 1, 9e-3)):
        switches = Switches(costs="moves", leads=leads, timing="packed", reservation="none")  # type: ignore[arg-type]
        plan = lgm.analyze(trace, device, switches)
        assert plan.out_tensor.tolist() == [leaves]
        assert plan.prediction.step_seconds == pytest.approx(seconds)


def test_a_chunk_that_leaves_is_room_once_it_is_copied() -> None:
    """Against a lane that copies chunk by chunk."""
    for seed in range(20):
        trace = training(3 + seed % 5, seed)
        device, life, n = device_for(trace, seed), analyze_lifetimes(trace), trace.operations
        used = select(life, device, Switches(), 0, improve=False)
        begin, out, stop = nominal(trace), _leaves(trace, life, used), life.gaps.stop
        two_turns = np.concatenate([begin[:-1], begin[:-1] + begin[-1]])
        expected, lane = np.zeros(2 * n, dtype=np.int64), 0.0
        for op, gap, first, last, size in zip(*out, strict=True):
            lane = max(lane, begin[op]) if size else lane
            for _ in range(last - first if size else 0):
                lane += size / (last - first) / device.out_speed
                expected[op : min(np.searchsorted(two_turns, lane - 1e-12), stop[gap])] += 1
        assert (_under_way(n, device, begin, out, stop) == expected[:n] + expected[n:]).all(), seed


def test_auto_is_as_fast_as_the_best_it_tries() -> None:
    for seed in range(20):
        trace = lawless(seed) if seed % 2 else training(3 + seed % 4, seed)
        device = device_for(trace, seed)
        best = lgm.analyze(trace, device, Switches(reservation="none"))
        assert check(best) == "", seed
        for timing in ("packed", "just_in_time"):
            other = lgm.analyze(trace, device, Switches(costs="moves", timing=timing, reservation="none"))  # type: ignore[arg-type]
            assert best.prediction.step_seconds <= other.prediction.step_seconds * 1.002, (seed, timing)


@pytest.mark.parametrize("path", TRACES, ids=lambda p: p.stem)
@pytest.mark.parametrize("share", [0.75, 0.5, 0.35])
def test_recorded_traces(path: Path, share: float) -> None:
    trace = lgm.load_trace(path)
    life = analyze_lifetimes(trace)
    device = Device(max(int(life.peak * share), int(life.needed.max())), 1e9, 1e9)
    plan = lgm.analyze(trace, device)
    validate(plan)
    life, moves = moves_of_plan(plan, life)
    assert plan.prediction.step_seconds >= least_seconds(trace, device, moves) - 1e-9
    assert plan.prediction.step_seconds >= least_seconds_in_windows(trace, device, life) - 1e-9
    assert run_plan(trace, device, life, moves)[0] == plan.prediction


@pytest.mark.parametrize("block", first_of(4, quick=2))
def test_no_plan_beats_the_bound_by_windows_and_some_reach_it(block: int) -> None:
    nearest = np.inf
    for seed in range(block * 25, block * 25 + 25):
        trace = lawless(seed) if seed % 2 else training(2 + seed % 7, seed)
        device = device_for(trace, seed)
        bound = least_seconds_in_windows(trace, device, analyze_lifetimes(trace))
        assert bound >= trace.seconds - 1e-9
        for switches in (Switches(), Switches(granularity="tensor"), Switches(timing="on_demand", reservation="none")):
            seconds = lgm.analyze(trace, device, switches).prediction.step_seconds
            assert seconds >= bound * (1 - 1e-9), (seed, switches)
            if bound > trace.seconds * 1.01:
                nearest = min(nearest, seconds / bound)
    assert nearest < 1.1


def test_the_bound_by_windows_by_hand() -> None:
    # Operation 0 makes `a`, 1 makes `b`, 2 uses `b` and 3 uses `a`, 1 ms each; there is room for one of them. `a` is
    # away at 1 and 2. Copying out takes 5 ms, from 1 on and before it runs; back takes 3 ms, after 2 and before 3 runs.
    trace = build(4, [(CHUNK, 0, 3), (CHUNK, 1, 2)], [(2, 1, 0, 1, 0), (3, 0, 0, 1, 0)])
    device = Device(1, CHUNK / 5e-3, CHUNK / 3e-3)
    # Windows: operation 0 (1 ms), operation 1 (5 ms beside 1), operations 2 and 3 (3 ms beside 2).
    assert least_seconds_in_windows(trace, device, analyze_lifetimes(trace)) == pytest.approx(9e-3)
    plan = lgm.analyze(trace, device)
    assert plan.prediction.step_seconds == pytest.approx(12e-3)
    assert least_seconds(trace, device, moves_of_plan(plan)[1]) == pytest.approx(5e-3)


def test_what_returns_comes_after_its_own_copy_out() -> None:
    # Operation 0 makes `a` (four chunks) and `b`; both leave with operation 1, copied out from 1 to 6 ms, `b` last.
    # Operation 3 wants that back at once, and there are free chunks: it arrives at 7 ms all the same.
    trace = build(6, [(4 * CHUNK, 0, 5), (CHUNK, 0, 3)], [(3, 1, 0, 1, 0), (5, 0, 0, 4, 0)])
    device = Device(10, CHUNK / 1e-3, CHUNK / 1e-3)
    life = analyze_lifetimes(trace, tails=True)
    a, b = (int(np.flatnonzero(life.gaps.tensor == tensor)[0]) for tensor in (0, 1))
    out, back = {"op": (1, 1), "first": (0, 0), "last": (4, 1)}, {"op": (2, 4), "first": (0, 0), "last": (1, 4)}
    columns = {f"out_{k}": np.array(v) for k, v in out.items()} | {f"in_{k}": np.array(v) for k, v in back.items()}
    moves = Moves(
        **columns,
        out_gap=np.array([a, b]), in_gap=np.array([b, a]), in_need=np.array([3, 5]),
        out_bytes=np.array([4, 1]) * CHUNK, in_bytes=np.array([1, 4]) * CHUNK,
    )  # fmt: skip
    _, line = run_plan(trace, device, life, moves)
    assert line.begin == pytest.approx([0, 1e-3, 2e-3, 7e-3, 8e-3, 12e-3])


def test_no_plan_is_needed_where_everything_fits() -> None:
    trace = training(5)
    plan = lgm.analyze(trace, Device(analyze_lifetimes(trace).peak, 1e6, 1e6))
    assert plan.out_chunks == plan.in_chunks == 0
    assert plan.prediction.step_seconds == pytest.approx(trace.seconds)


def test_what_nobody_uses_stays_where_it_is_while_everything_fits() -> None:
    trace = build(3, [(4 * CHUNK, -1, -1), (3 * CHUNK, 1, 1)], [])
    assert lgm.analyze(trace, Device(7, 1e6, 1e6)).out_chunks == 0
    assert lgm.analyze(trace, Device(5, 1e6, 1e6)).out_chunks == 2


def test_too_small_a_budget_names_the_operation() -> None:
    trace = build(
        3, [(4 * CHUNK, -1, -1), (3 * CHUNK, 1, 1)], [(1, 0, 0, 4, 0)], names=("a", "matmul"), op_name=[0, 1, 0]
    )
    with pytest.raises(lgm.InfeasibleError, match=r"matmul \(operation 1 of 3\) needs 7\.00 KiB") as caught:
        lgm.analyze(trace, Device(6, 1e6, 1e6))
    assert caught.value.needed == 7 * CHUNK
    lgm.analyze(trace, Device(7, 1e6, 1e6))


def test_a_row_in_the_middle_of_an_operation_has_its_name() -> None:
    trace = build(
        4, [(4 * CHUNK, -1, -1)], [], names=("bwd", "(goes on)", "mul"), op_name=[0, 2, 1, 1], op_last=[2, 1, 2, 3]
    )
    assert [describe(trace, row) for row in (1, 2)] == ["mul (operation 1 of 4)", "bwd (operation 2 of 4)"]
    assert describe(trace, 3) == "(goes on) (operation 3 of 4)"  # of one that began before the iteration


def test_a_plan_beats_demand_when_copies_can_hide() -> None:
    trace = training(12)
    device = Device(analyze_lifetimes(trace).peak // 2, 3e6, 3e6)
    plan = lgm.analyze(trace, device)
    assert plan.prediction.step_seconds < run_on_demand(trace, device).step_seconds
    assert plan.prediction.step_seconds < run_on_demand(trace, device, whole=True).step_seconds


def test_clean_weights_leave_for_free() -> None:
    # A weight that is only read, away twice an iteration: it comes back twice and is never copied out again.
    tensors = [(4 * CHUNK, -1, -1), (4 * CHUNK, 1, 1), (4 * CHUNK, 3, 3)]
    trace = build(5, tensors, [(0, 0, 0, 4, 0), (2, 0, 0, 4, 0), (4, 0, 0, 4, 0)])
    plan = lgm.analyze(trace, Device(4, 1e6, 1e6))
    validate(plan)
    assert plan.prediction.out_chunks == 0
    assert plan.prediction.in_chunks == 8


@pytest.mark.parametrize("block", first_of(3, quick=1))
def test_layers_never_share_a_chunk(block: int) -> None:
    for seed in range(block * 20, block * 20 + 20):
        trace = training(2 + seed % 7, seed)
        plan = lgm.analyze(trace, device_for(trace, seed))
        life, moves = moves_of_plan(plan)
        seen = list(layers(trace, plan.device, life, moves))
        assert all(0 <= chunk < plan.device.budget_chunks for layer in seen for _, _, chunk in layer.placed)
        assert len(seen) == len(plan.out_op) + len(plan.in_op) + int(
            (trace.tensor_born >= 0).sum() + (trace.tensor_died >= 0).sum()
        )
        for layer in seen:
            assert len({chunk for _, _, chunk in layer.placed}) == len(layer.placed)


def test_what_dies_absent_is_whole_again_when_it_is_born() -> None:
    """It reaches over the turn, leaves after it and is never used again: nothing is away when the next begins."""
    trace = build(4, [(2 * CHUNK, 2, 1), (3 * CHUNK, 0, 1)], [(3, 0, 0, 2, 1), (1, 1, 0, 3, 1)])
    plan = lgm.analyze(trace, Device(3, 1e9, 1e9))
    assert set(plan.out_tensor.tolist()) == {0} and not len(plan.in_tensor)
    assert away_at_turn(plan) == []


def test_waiting_is_for_copies_alone() -> None:
    trace = training(6)
    life = analyze_lifetimes(trace)
    plan = lgm.analyze(trace, Device(int(life.peak * 0.6), 1e9, 1e9, tax=1e-9, switch=8e-6))
    moving = plan.prediction.step_seconds - trace.seconds
    assert plan.prediction.waits_seconds < 1e-4 * moving
    demand = run_on_demand(trace, plan.device)
    assert demand.step_seconds > trace.seconds + 8e-6 * demand.in_chunks


def test_away_at_turn_agrees_with_the_gaps() -> None:
    trace = training(6)
    plan = lgm.analyze(trace, Device(int(analyze_lifetimes(trace).peak * 0.3), 1e6, 1e6))
    away = sum(last - first for _, first, last in away_at_turn(plan))
    life, moves = moves_of_plan(plan)
    over = life.gaps.stop[moves.out_gap] >= trace.operations
    early = moves.in_op > moves.in_need
    assert away == (moves.out_last - moves.out_first)[over].sum() - (moves.in_last - moves.in_first)[early].sum()


# --- corrupted plans, each refused, and most by a rule ------------------------------------------------------


@pytest.fixture(scope="module")
def good() -> Plan:
    trace = training(8, seed=3)
    plan = lgm.analyze(trace, Device(int(analyze_lifetimes(trace).peak * 0.45), 2e6, 2e6))
    validate(plan)
    assert len(plan.out_op) > 8
    assert len(plan.in_op) > 8
    return plan


def edit(plan: Plan, **changes: object) -> Plan:
    return dataclasses.replace(plan, **changes)  # type: ignore[arg-type]


def at(array: np.ndarray, k: int, value: int) -> np.ndarray:
    changed = array.copy()
    changed[k] = value
    return changed


def insert(plan: Plan, side: str, op: int, tensor: int, first: int, last: int, need: int = 0) -> Plan:
    k = int(np.searchsorted(getattr(plan, f"{side}_op"), op, side="right"))
    new = {"op": op, "tensor": tensor, "first": first, "last": last} | ({"need": need} if side == "in" else {})
    return edit(plan, **{f"{side}_{f}": np.insert(getattr(plan, f"{side}_{f}"), k, v) for f, v in new.items()})


def drop(plan: Plan, side: str, k: int) -> Plan:
    fields = ("op", "tensor", "first", "last") + (("need",) if side == "in" else ())
    return edit(plan, **{f"{side}_{f}": np.delete(getattr(plan, f"{side}_{f}"), k) for f in fields})


def temporary(plan: Plan) -> int:
    """A tensor that is neither there at the turn nor ever moved."""
    trace = plan.trace
    moved = set(plan.out_tensor.tolist())
    return next(t for t in range(trace.tensors) if 0 < trace.tensor_born[t] <= trace.tensor_died[t] and t not in moved)


def in_use(plan: Plan) -> Plan:
    trace = plan.trace
    object.__setattr__(trace, "op_last", trace.op_last.copy())
    k = int(np.flatnonzero(trace.use_op > 2)[0])
    op, tensor = int(trace.use_op[k]), int(trace.use_tensor[k])
    last = trace.op_last.copy()
    last[op] = op + 1
    nested = dataclasses.replace(trace, op_last=last)
    return insert(edit(plan, trace=nested), "out", op + 1, tensor, 0, 1)


def again(plan: Plan, side: str) -> Plan:
    """The first move, twice."""
    fields = ("op", "tensor", "first", "last") + (("need",) if side == "in" else ())
    return insert(plan, side, *(int(getattr(plan, f"{side}_{f}")[0]) for f in fields))


def smaller(device: Device) -> Device:
    return dataclasses.replace(device, budget_chunks=device.budget_chunks - 5)


def predict(plan: Plan, **changes: float) -> Plan:
    return edit(plan, prediction=dataclasses.replace(plan.prediction, **changes))  # type: ignore[arg-type]


MISFITS: list[tuple[str, str, Callable[[Plan], Plan]]] = [
    ("a short array", "entries", lambda p: edit(p, out_first=p.out_first[:-1])),
    ("needs missing", "entries", lambda p: edit(p, in_need=p.in_need[:-1])),
    ("keep too short", "entries", lambda p: edit(p, keep=p.keep[:-1])),
    ("keep is no flag", "keep holds 2", lambda p: edit(p, keep=at(p.keep, 0, 2))),
    ("an operation too late", "out_op holds", lambda p: edit(p, out_op=at(p.out_op, -1, p.trace.operations))),
    ("a need outside", "in_need holds", lambda p: edit(p, in_need=at(p.in_need, 0, -1))),
    ("out of order", "order", lambda p: edit(p, out_op=p.out_op[::-1])),
    ("no such tensor", "in_tensor holds", lambda p: edit(p, in_tensor=at(p.in_tensor, 0, p.trace.tensors))),
    ("an empty piece", "empty", lambda p: edit(p, out_last=at(p.out_last, 0, int(p.out_first[0])))),
    ("a piece too long", "outside", lambda p: edit(p, in_last=at(p.in_last, 0, 10**6))),
    ("all is reserved", "reservation", lambda p: edit(p, reservation=p.device.budget_chunks)),
]  # fmt: skip


@pytest.mark.parametrize(("words", "change"), [c[1:] for c in MISFITS], ids=[c[0] for c in MISFITS])
def test_a_plan_whose_parts_do_not_fit_cannot_be_made(good: Plan, words: str, change: Callable[[Plan], Plan]) -> None:
    with pytest.raises(lgm.LgmError, match=words):
        change(good)


CORRUPTIONS: list[tuple[str, str, Callable[[Plan], Plan]]] = [
    ("the dead leave", "leave-dead", lambda p: insert(p, "out", 0, temporary(p), 0, 1)),
    ("the dead arrive", "arrive-dead", lambda p: insert(p, "in", 0, temporary(p), 0, 1)),
    ("leaves twice", "leave-absent", lambda p: again(p, "out")),
    ("leaves its user", "leave-in-use", in_use),
    ("arrives twice", "arrive-resident", lambda p: again(p, "in")),
    ("a peak above the budget", "prediction-peak", lambda p: predict(p, peak_chunks=p.device.budget_chunks + 1)),
    ("more copied than leaves", "prediction-traffic", lambda p: predict(p, out_chunks=p.out_chunks + 1)),
    ("for another operation", "need", lambda p: edit(p, in_need=at(p.in_need, 0, p.in_need[0] + 1))),
    ("never comes back", "use-absent", lambda p: drop(p, "in", len(p.in_op) // 2)),
    ("a smaller device", "over-budget", lambda p: edit(p, device=smaller(p.device), reservation=0)),
    ("peak too low", "prediction-peak", lambda p: predict(p, peak_chunks=1)),
    ("traffic wrong", "prediction-traffic", lambda p: predict(p, in_chunks=0)),
    ("faster than computing", "prediction-time", lambda p: predict(p, step_seconds=0.0)),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "corrupt"), [c[1:] for c in CORRUPTIONS], ids=[c[0] for c in CORRUPTIONS])
def test_a_corrupted_plan_is_refused_by_its_rule(good: Plan, rule: str, corrupt: Callable[[Plan], Plan]) -> None:
    with pytest.raises(InvalidPlanError) as caught:
        validate(corrupt(good))
    assert caught.value.rule == rule


def test_what_an_iteration_leaves_away_is_away_when_the_next_begins() -> None:
    trace = build(4, [(CHUNK, -1, -1), (CHUNK, 1, 2)], [(0, 0, 0, 1, 0)])
    plan = lgm.analyze(trace, Device(2, 1e6, 1e6))
    with pytest.raises(InvalidPlanError, match="use-absent"):
        validate(insert(plan, "out", 2, 0, 0, 1))


def test_a_copy_takes_its_latency_each_way_and_moving_its_time_of_computing() -> None:
    trace = build(4, [(CHUNK, 0, 3), (CHUNK, 1, 2)], [(2, 1, 0, 1, 0), (3, 0, 0, 1, 0)])
    plan = lgm.analyze(trace, Device(1, CHUNK / 5e-3, CHUNK / 3e-3, latency=1e-3))
    assert plan.prediction.step_seconds == pytest.approx((12 + 2) * 1e-3)
    # Nothing waits: what is lost is each byte's tax and each chunk's mapping, out and back.
    trace = training(6)
    device = Device(int(analyze_lifetimes(trace).peak * 0.6), 1e9, 1e9, tax=1e-9, switch=8e-6)
    plan = lgm.analyze(trace, device)
    _, moves = moves_of_plan(plan)
    lost = float(moves.out_bytes.sum() + moves.in_bytes.sum()) * device.tax
    lost += (plan.out_chunks + plan.in_chunks) * device.switch
    assert plan.prediction.step_seconds - plan.prediction.waits_seconds == pytest.approx(trace.seconds + lost)


def test_without_a_plan_by_hand() -> None:
    """`a` is written at 1 and used at 3; `b` comes between, and there is room for one: each leaves for the other."""
    tensors = [(CHUNK, -1, -1), (CHUNK, -1, -1)]
    uses = [(0, 0, 0, 1, 0), (1, 0, 0, 1, 1), (2, 1, 0, 1, 0), (3, 0, 0, 1, 0)]
    trace = build(4, tensors, uses)
    device = Device(1, CHUNK / 5e-3, CHUNK / 3e-3, latency=1e-3)
    found = run_on_demand(trace, device)
    assert (found.out_chunks, found.in_chunks, found.peak_chunks) == (
        1,
        2,
        1,
    )  # `b` is never written: it was copied once
    # `a` out and `b` in at 2, `a` in at 3; what is missing comes in 4 ms, what leaves goes in 6.
    assert found.step_seconds == pytest.approx(18e-3)
    assert found.waits_seconds == pytest.approx(14e-3)
