"""Seats: who is there at the same time sits on different chunks, and what is recomputed keeps its own."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import lgm
from lgm.fitting import GPUS, on_gpu
from lgm.iteration.lifetimes import analyze_lifetimes, lifespans
from lgm.placing.seats import seats, to_spare
from lgm.timing.moves import moves_of_plan
from lgm.timing.simulate import run_plan

from .random_traces import CHUNK, build, first_of, lawless, training
from .test_recompute import SLOW, with_calls

TRACES = Path(__file__).resolve().parent.parent.parent / "traces"


def held(plan: lgm.Plan) -> list[set[tuple[int, int]]]:
    """By row: recorded vTensors that must have a chunk then: those alive, but for what left and is not back."""
    trace, n = plan.trace, plan.trace.operations
    of = list(range(trace.tensors)) if plan.remaking is None else plan.remaking.tensor.tolist()
    life, moves = moves_of_plan(plan)
    begin, stop = lifespans(trace)
    rows: list[set[tuple[int, int]]] = [set() for _ in range(n)]
    for t in range(trace.tensors):
        for row in range(int(begin[t]), min(int(stop[t]), int(begin[t]) + n)):
            rows[row % n] |= {(t, c) for c in range(int(trace.chunks[t]))}
    for k, g in enumerate(moves.out_gap.tolist()):
        t = int(plan.out_tensor[k])
        for row in range(int(plan.out_op[k]), int(plan.out_op[k]) + (life.gaps.stop[g] - plan.out_op[k] - 1) % n + 1):
            rows[row % n] -= {(t, c) for c in range(int(plan.out_first[k]), int(plan.out_last[k]))}
    return [{(of[t], c) for t, c in there if of[t] >= 0} for there in rows]


def check(plan: lgm.Plan) -> bool:
    """Returns whether they have seats."""
    first, chunk, *_ = seats(plan)
    assert len(first) == plan.recorded.tensors + 1
    assert (np.diff(first) == plan.recorded.chunks).all()
    assert len(chunk) == first[-1]
    assert ((chunk >= -1) & (chunk < plan.device.budget_chunks)).all()
    for row, there in enumerate(held(plan)):
        taken = [int(chunk[first[t] + c]) for t, c in there]
        taken = [one for one in taken if one >= 0]
        assert len(set(taken)) == len(taken), f"two sit on one chunk at row {row}"
    return bool((chunk >= 0).any())


@pytest.mark.parametrize("block", first_of(2, quick=1))
def test_nobody_shares_a_seat(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lgm.placing.seats._WITHOUT", 1.0)
    seated = 0
    for seed in range(7 * block, 7 * (block + 1)):
        trace = with_calls(lawless(seed) if seed % 2 else training(3 + seed % 5, seed), seed)
        life = analyze_lifetimes(trace)
        budget = max(int(life.needed.max()), life.peak * (2 + seed % 3) // 5, 1)
        seated += check(lgm.analyze(trace, lgm.Device(budget, SLOW, SLOW), recompute="auto"))
    assert seated >= 4


def on_h100(name: str, share: float, recompute: lgm.Recompute) -> lgm.Plan:
    trace = on_gpu(lgm.load_trace(TRACES / f"{name}.npz"), GPUS["h100"], "fp32", 8, chunk_bytes=16 << 20)
    budget = int(analyze_lifetimes(trace).peak * share)
    return lgm.analyze(trace, lgm.Device(budget, GPUS["h100"].link, GPUS["h100"].link), recompute=recompute)


def test_a_gpus_plan_has_seats_for_all() -> None:
    plan = on_h100("resnet50", 0.5, "auto")
    first, chunk, *_ = seats(plan)
    used = np.flatnonzero(chunk < 0)
    assert len(used) <= 0.005 * len(chunk)
    assert check(plan)
    # What is recomputed sits where it sat: the two lives are one tensor to the core.
    assert plan.remaking is not None
    made = np.unique(plan.remaking.make_tensor)
    assert all((chunk[first[t] : first[t + 1]] >= 0).any() for t in made.tolist())


def test_where_too_many_find_none_nobody_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = on_h100("resnet50", 0.5, "never")  # what waits for copies all the time uses every chunk at every moment
    monkeypatch.setattr("lgm.placing.seats._WITHOUT", 0.005)
    _, chunk, *_ = seats(plan)
    assert (chunk == -1).all()
    monkeypatch.setattr("lgm.placing.seats._WITHOUT", 1.0)
    _, chunk, *_ = seats(plan)
    assert 0 < (chunk < 0).sum() < 0.05 * len(chunk)
    assert check(plan)


def test_with_chunks_to_spare_nearly_each_has_one() -> None:
    trace = on_gpu(lgm.load_trace(TRACES / "vit.npz"), GPUS["h100"], "fp32", 4, chunk_bytes=8 << 20)
    budget = analyze_lifetimes(trace).peak // 2
    spare = to_spare(trace, budget)
    assert spare == math.ceil(0.03 * budget)
    without = []
    for used in (budget, budget - spare):
        plan = lgm.analyze(trace, lgm.Device(used, GPUS["h100"].link, GPUS["h100"].link), recompute="auto")
        without.append(int((seats(plan, budget).chunk < 0).sum()))
    assert without[0] > 10 and without[1] <= 2
    needed = int(analyze_lifetimes(trace).needed.max())
    assert to_spare(trace, needed + 1) == 1 and to_spare(trace, needed - 1) == 0
    peak = analyze_lifetimes(trace).peak
    assert [to_spare(trace, budget) for budget in (peak, peak + 2, 2 * peak)] == [0, 2, math.ceil(0.06 * peak)]


@pytest.mark.parametrize(("name", "share", "most"), [("vit", 0.5, 0), ("gpt2", 0.35, 1)])
def test_who_found_none_goes_first(name: str, share: float, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = GPUS["h100" if name == "vit" else "gtx1650"]
    trace = on_gpu(lgm.load_trace(TRACES / f"{name}.npz"), gpu, "fp32", 8, chunk_bytes=16 << 20)
    budget = int(analyze_lifetimes(trace).peak * share)
    plan = lgm.analyze(trace, lgm.Device(budget - to_spare(trace, budget), gpu.link, gpu.link))
    found = []
    for rounds in (0, 3):
        monkeypatch.setattr("lgm.placing.seats._IN_VAIN", rounds)
        found.append(int((seats(plan, budget).chunk < 0).sum()))
    assert found[0] > 3 and found[1] <= most
    assert check(plan)


def test_where_everything_fits_each_has_one() -> None:
    trace = training(6, 1)
    plan = lgm.analyze(trace, lgm.Device(analyze_lifetimes(trace).peak + 3, SLOW, SLOW))
    assert check(plan)
    assert (seats(plan).chunk >= 0).all()


def test_what_lives_for_no_time_at_all_takes_no_seat_from_others() -> None:
    uses = [(0, 0, 0, 1, 1), (1, 1, 0, 1, 1), (2, 2, 0, 1, 1), (3, 0, 0, 1, 0)]
    times = [1_000_000, 0, 1_000_000, 1_000_000]
    trace = build(4, [(CHUNK, 0, 3), (CHUNK, 1, 1), (CHUNK, 2, 2)], uses, op_ns=times)
    _, chunk, *_ = seats(lgm.analyze(trace, lgm.Device(2, 1e6, 1e6)))
    assert chunk[1] == -1
    assert {int(chunk[0]), int(chunk[2])} == {0, 1}


@pytest.mark.parametrize(("copy_out", "shared"), [(1.5e-3, True), (3.5e-3, False)])
def test_a_seat_is_free_when_its_copy_out_has_ended_and_not_before(copy_out: float, shared: bool) -> None:
    """`a` leaves at row 1; `b`, born at row 3, can sit where it sat if the copy has ended by then."""
    uses = [(0, 0, 0, 1, 1), (3, 1, 0, 1, 1), (5, 2, 0, 1, 1), (7, 0, 0, 1, 0)]
    trace = build(8, [(CHUNK, 0, 7), (CHUNK, 3, 5), (CHUNK, 5, 5)], uses)  # two at most, were `a` away
    plan = lgm.analyze(trace, lgm.Device(2, CHUNK / copy_out, CHUNK / 1e-4), lgm.Switches(reservation="none"))
    assert plan.out_tensor.tolist() == [0]
    _, chunk, *_ = seats(plan)
    assert (int(chunk[0]) == int(chunk[1])) == shared


def test_what_comes_back_is_asked_for_while_its_copy_begins() -> None:
    """Not before whoever sits there is gone, and not too late for the lane."""
    plan = on_h100("resnet50", 0.5, "auto")
    _, moves = moves_of_plan(plan)
    _, line = run_plan(plan.trace, plan.device, *moves_of_plan(plan))
    back = seats(plan).arrivals
    assert (back.last - back.first).sum() == (plan.in_last - plan.in_first).sum()
    assert (np.diff(back.op) >= 0).all()
    assert len(back.op) > len(plan.in_op)  # one by one where their copies begin during several operations
    asked = np.array(line.begin) - np.array(line.wait)  # with a row, which may have to wait then
    rows = np.append(line.begin, np.inf)
    reached: dict[int, int] = {}
    later = 0
    for begins, ends, k, count in line.back:
        first = reached.get(k, int(moves.in_first[k]))
        reached[k] = first + count
        if moves.in_op[k] > moves.in_need[k]:
            continue
        for nth in range(count):
            (at,) = np.flatnonzero(
                (back.tensor == plan.in_tensor[k]) & (back.first <= first + nth) & (back.last > first + nth)
                & (back.op >= moves.in_op[k]) & (back.op <= moves.in_need[k])
            )  # fmt: skip
            copied = begins + (ends - begins) * nth / count
            assert asked[back.op[at]] <= copied + 1e-9
            assert rows[back.op[at] + 1] > copied - 1e-9 or back.op[at] == moves.in_need[k]
            later += int(back.op[at] > moves.in_op[k])
    assert later > 10


@pytest.mark.parametrize(("name", "recompute"), [("resnet50", "auto"), ("gpt2", "never")])
def test_what_leaves_is_asked_for_while_its_copy_begins(name: str, recompute: lgm.Recompute) -> None:
    """Not before, as copies that wait for each other fill their stream; and never after it is asked to come back."""
    plan = on_h100(name, 0.5, recompute)
    life, moves = moves_of_plan(plan)
    _, line = run_plan(plan.trace, plan.device, life, moves)
    out, back = seats(plan)[2:]
    assert (np.diff(out.op) >= 0).all()
    asked = dict(zip(zip(out.tensor.tolist(), out.first.tolist(), out.last.tolist(), strict=True), out.op, strict=True))
    leaves = dict(
        enumerate(zip(plan.out_tensor.tolist(), plan.out_first.tolist(), plan.out_last.tolist(), strict=True))
    )
    assert set(asked) == set(leaves.values()) and len(asked) == len(out.op)  # here each leaves once
    begins = {k: begun for begun, _, k, _ in line.out}
    rows = np.append(line.begin, np.inf)
    later = 0
    for k, which in leaves.items():
        row = int(asked[which])
        returns = back.op[(back.tensor == which[0]) & (back.op >= plan.out_op[k])].min(
            initial=plan.trace.operations - 1
        )
        assert plan.out_op[k] <= row < life.gaps.stop[moves.out_gap[k]]
        if k not in begins:  # leaves without a copy
            assert row == plan.out_op[k]
            continue
        assert row == plan.out_op[k] or rows[row] <= begins[k] + 1e-9
        assert rows[row + 1] > begins[k] - 1e-9 or row == returns
        later += row > plan.out_op[k]
    assert later > 10
