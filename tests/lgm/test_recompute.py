"""Making things again: the rewritten trace does what the recorded one did, and a plan for it is a plan."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lgm
from lgm.iteration import analyze_lifetimes
from lgm.iteration.calls import Calls
from lgm.remaking.mix import Search
from lgm.remaking.only import analyze_only
from lgm.remaking.recompute import Making, candidates, choose_makings, copying_seconds
from lgm.remaking.rewrite import rewrite

from .random_traces import CHUNK, build, first_of, lawless, training
from .test_design import CHUNK as MIB
from .test_design import example

SLOW = 1e6  # bytes a second
TRACES = Path(__file__).resolve().parents[2] / "traces"


def with_calls(trace: lgm.Trace, seed: int, *, share: float = 0.8) -> lgm.Trace:
    """Rows cut into calls, each with a name of its own; most of them can be run again."""
    rng = np.random.default_rng(seed)
    first, last, row = [], [], 0
    while row < trace.operations:
        end = min(row + int(rng.integers(0, 3)), trace.operations - 1)
        if rng.random() < 0.9:
            first.append(row)
            last.append(end)
        row = end + 1
    names = tuple(f"op{k}" for k in range(trace.operations))
    again = (rng.random(len(first)) < share).astype(int)
    return replace(
        trace,
        names=names,
        op_name=np.arange(trace.operations),
        call_first=np.array(first, dtype=np.int64),
        call_last=np.array(last, dtype=np.int64),
        call_again=np.array(again, dtype=np.int64),
    )


def values(trace: lgm.Trace, call_of: dict[int, int], again: dict[int, int]) -> dict[tuple[int, int], int]:
    """What each tensor holds at each row that uses it, if a call makes of what it reads a number of its own.

    `call_of`: the call each row belongs to. `again`: rows that run a call again, all of it.
    """
    holds = {t: hash(("old", t)) for t in range(trace.tensors)}
    uses: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for row, t, write in zip(trace.use_op.tolist(), trace.use_tensor.tolist(), trace.use_write.tolist(), strict=True):
        uses[row].append((t, write))
    births: dict[int, list[int]] = defaultdict(list)
    for t, row in enumerate(trace.tensor_born.tolist()):
        births[row].append(t)
    found, row = {}, 0
    while row < trace.operations:
        call = again.get(row, call_of.get(row))
        rows = [row]
        while row not in again and call is not None and call_of.get(rows[-1] + 1) == call:
            rows.append(rows[-1] + 1)
        born = {t for r in rows for t in births[r]}
        for r in rows:
            found.update({(r, t): holds[t] for t, _ in uses[r] if t not in born})
        read = sorted({holds[t] for r in rows for t, _ in uses[r] if t not in born})
        value = hash((("call", call) if call is not None else ("row", int(trace.op_name[row])), *read))
        for t in born | {t for r in rows for t, write in uses[r] if write}:
            holds[t] = value
        row = rows[-1] + 1
    return found


def calls_by_row(trace: lgm.Trace) -> dict[int, int]:
    pairs = zip(trace.call_first.tolist(), trace.call_last.tolist(), strict=True)
    return {row: c for c, (a, b) in enumerate(pairs) for row in range(a, b + 1)}


def check_rewritten(trace: lgm.Trace, again: lgm.Trace, remaking: lgm.records.model.Remaking) -> None:
    call_of = calls_by_row(trace)
    at = remaking.at.tolist()
    names = {f"op{int(trace.call_first[c])} (again)": c for c in range(len(trace.call_first))}
    rerun = {r: names[again.names[again.op_name[r]]] for r in set(range(again.operations)) - set(at)}
    expected = values(trace, call_of, {})
    got = values(again, {at[row]: c for row, c in call_of.items()}, rerun)
    # A call that was cut by rows between its own is one call all the same; none is.
    recorded = remaking.tensor.tolist()
    seen = {(row, recorded[t]): value for (row, t), value in got.items() if recorded[t] >= 0}
    for (row, t), value in expected.items():
        assert seen[at[row], t] == value, f"tensor {t} at row {row}"


def some_trace(seed: int) -> lgm.Trace:
    return with_calls(lawless(seed) if seed % 2 else training(3 + seed % 5, seed), seed)


def some_makings(trace: lgm.Trace, price: float) -> tuple[Calls, list[Making]]:
    life = analyze_lifetimes(trace)
    calls, found = candidates(trace, life)
    device = lgm.Device(max(int(life.needed.max()), 1), SLOW, SLOW)
    return calls, choose_makings(trace, life, device, calls, found, copying_seconds(trace, life, device) * price)


@pytest.mark.parametrize("price", [1e6, 3.0])
@pytest.mark.parametrize("seed", range(150))
def test_what_is_made_again_is_what_it_was(seed: int, price: float) -> None:
    trace = some_trace(seed)
    calls, makings = some_makings(trace, price)
    if not makings:
        return
    again, remaking = rewrite(trace, calls, makings)
    # Rows inside of a call would run in the middle of it, where it has written what nobody may see.
    if all(making.row in calls.first or making.row not in calls_by_row(trace) for making in makings):
        check_rewritten(trace, again, remaking)
    assert (again.op_last[remaking.at] == remaking.at[trace.op_last]).all()
    assert set(np.unique(remaking.tensor)) <= set(range(-1, trace.tensors))


def test_something_is_made_again_and_some_of_it_together() -> None:
    makings = [making for seed in range(60) for making in some_makings(some_trace(seed), 1e6)[1]]
    assert sum(len(making.targets) for making in makings) > 60
    assert sum(len(making.targets) > 1 for making in makings) > 10


def chained(layers: int) -> lgm.Trace:
    """One row each: `layers` forward, each of what the one before made, and back in the reverse order."""
    n = 2 * layers
    tensors = [(CHUNK, k, n - 1 - k) for k in range(layers)]
    uses = [(k, k - 1, 0, 1, 0) for k in range(1, layers)] + [(n - 1 - k, k, 0, 1, 0) for k in range(layers)]
    again = [int(0 < k < layers) for k in range(n)]
    return build(n, tensors, uses, call_first=list(range(n)), call_last=list(range(n)), call_again=again)


def test_a_block_of_which_all_was_dropped_is_run_once() -> None:
    trace = chained(12)
    plan = lgm.analyze(trace, lgm.Device(6, 1.0, 1.0), recompute="only")
    assert plan.remaking is not None
    assert plan.out_chunks == plan.in_chunks == 0
    lgm.validate(plan)
    rows = np.flatnonzero(plan.remaking.rows_again)
    assert len(rows) == len(plan.remaking.make_op) <= trace.operations // 2  # nothing twice
    assert len(np.unique(plan.remaking.make_op)) < len(plan.remaking.make_op)  # and several together


def test_what_is_asked_for_grows_until_something_more_is_dropped() -> None:
    """A chunk too many for rounds that each ask for one more, where tensors have eight: everything was dropped then."""
    trace = lgm.load_trace(TRACES / "gpt2.npz")
    budget = int(analyze_lifetimes(trace).peak * 0.4)
    plan = analyze_only(trace, lgm.Device(budget, 1.0, 1.0), None, lambda *_: None)
    assert plan.trace.seconds < 1.25 * trace.seconds  # 1.26 before


@pytest.mark.parametrize("seed", range(4))
def test_plans_without_copies(seed: int) -> None:
    trace = with_calls(training(12, seed), seed, share=1.0)
    life = analyze_lifetimes(trace)
    made = 0
    for share in (0.9, 0.7):
        budget = max(int(life.peak * share), int(life.needed.max()))
        try:
            plan = lgm.analyze(trace, lgm.Device(budget, 1.0, 1.0), recompute="only")
        except lgm.InfeasibleError as error:
            assert "making things again alone" in str(error) and error.needed > error.budget
            continue
        lgm.validate(plan)
        assert plan.out_chunks == plan.in_chunks == 0
        assert plan.prediction.peak_chunks <= budget
        made += 1
    assert made > 0


@pytest.mark.parametrize("seed", range(3))
def test_what_is_named_as_needed_is_enough(seed: int) -> None:
    trace = with_calls(training(5, seed), seed, share=1.0)
    life = analyze_lifetimes(trace)
    with pytest.raises(lgm.InfeasibleError, match="making things again alone") as raised:
        lgm.analyze(trace, lgm.Device(int(life.needed.max()), 1.0, 1.0), recompute="only")
    needed = raised.value.needed // CHUNK
    plan = lgm.analyze(trace, lgm.Device(needed, 1.0, 1.0), recompute="only")
    lgm.validate(plan)
    assert plan.prediction.peak_chunks <= needed


@pytest.mark.parametrize("copy", [2e-1, 2e-3, 2e-4, 2e-6])  # seconds, of a chunk
@pytest.mark.parametrize("seed", first_of(6, quick=3))
def test_plans_that_mix_are_valid_and_not_slower(seed: int, copy: float, tmp_path: Path) -> None:
    trace = with_calls(training(12, seed), seed, share=1.0)
    life = analyze_lifetimes(trace)
    budget = max(int(life.peak * 0.55), int(life.needed.max()))
    device = lgm.Device(budget, CHUNK / copy, CHUNK / copy)
    copied = lgm.analyze(trace, device)
    mixed = lgm.analyze(trace, device, recompute="auto")
    lgm.validate(mixed)
    assert mixed.prediction.step_seconds <= copied.prediction.step_seconds
    assert mixed.prediction.peak_chunks <= budget
    lgm.save_plan(mixed, tmp_path / "plan.npz")
    back = lgm.load_plan(tmp_path / "plan.npz")
    assert (back.remaking is None) == (mixed.remaking is None)
    if mixed.remaking is not None and back.remaking is not None:
        for name in ("at", "tensor", "drop_op", "drop_tensor", "make_op", "make_tensor", "sees"):
            assert np.array_equal(getattr(back.remaking, name), getattr(mixed.remaking, name))
        assert back.remaking.origin.operations == trace.operations


@pytest.mark.parametrize("share", [0.3, 0.6])
@pytest.mark.parametrize("seed", first_of(4, quick=2))
def test_no_price_is_much_better_than_the_one_found(seed: int, share: float) -> None:
    """Of too little that is recomputed, of too much, and where some of it needs more at once than there is."""
    trace = with_calls(training(12, seed), seed, share=1.0)
    life = analyze_lifetimes(trace)
    device = lgm.Device(max(int(life.peak * share), int(life.needed.max())), CHUNK / 1e-2, CHUNK / 1e-2)
    found = lgm.analyze(trace, device, recompute="auto")
    search = Search(trace, device, None, lambda *_: None, lgm.analyze(trace, device))
    best = min(search.draft(price).seconds for price in np.linspace(0.05, 1.0, 20))
    assert found.prediction.step_seconds <= best * 1.2


def test_few_are_tried_where_nothing_waits_for_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor that copies itself: no lane is ever behind, and what a copy takes of it is known."""
    trace = lgm.load_trace(TRACES / "unet.npz")
    budget, made = analyze_lifetimes(trace).peak // 2, []
    monkeypatch.setattr("lgm.remaking.mix.rewrite", lambda *of: made.append(of) or rewrite(*of))
    for device in (lgm.Device(budget, 1e12, 1e12, tax=2e-10), lgm.Device(budget, 3e8, 3e8)):
        made.clear()
        plan = lgm.analyze(trace, device, recompute="auto")
        assert 0 < len(made) <= 6 if device.tax else len(made) > 6
        assert plan.prediction.step_seconds <= lgm.analyze(trace, device).prediction.step_seconds


WRONG = {  # by the rule that is broken
    "drop-dead": lambda r: {"drop_op": np.zeros_like(r.drop_op)},
    "use-dropped": lambda r: {"make_op": np.full_like(r.make_op, int(r.at[-1]))},
    "make-present": lambda r: {"drop_op": r.drop_op[:0], "drop_tensor": r.drop_tensor[:0]},
    "drop-dropped": lambda r: {"drop_tensor": np.full_like(r.drop_tensor, int(np.flatnonzero(r.origin.lasting)[0]))},
    "remade-trace": lambda r: {"origin": replace(r.origin, op_name=r.origin.op_name[::-1].copy())},
    "dropped-at-turn": lambda r: {
        "drop_op": np.append(r.drop_op, int(r.at[-1])),
        "drop_tensor": np.append(r.drop_tensor, int(np.flatnonzero(r.origin.lasting)[0])),
    },
}


@pytest.mark.parametrize("rule", WRONG)
def test_a_plan_that_drops_or_makes_wrongly_is_refused(rule: str) -> None:
    trace = with_calls(training(12, 0), 0, share=1.0)
    speed = CHUNK / 2e-3
    plan = lgm.analyze(trace, lgm.Device(int(analyze_lifetimes(trace).peak * 0.55), speed, speed), recompute="auto")
    assert plan.remaking is not None and len(plan.remaking.drop_op) > 1
    lgm.validate(plan)
    with pytest.raises(lgm.InvalidPlanError, match=rule):
        lgm.validate(replace(plan, remaking=replace(plan.remaking, **WRONG[rule](plan.remaking))))


def test_the_example_made_again() -> None:
    trace = replace(example(), call_first=np.arange(6), call_last=np.arange(6), call_again=np.array([0, 1, 0, 0, 0, 0]))
    life = analyze_lifetimes(trace)
    calls, found = candidates(trace, life)
    (one,) = found
    assert (one.tensor, one.start, one.stop) == (2, 3, 4)
    again, remaking = rewrite(trace, calls, [Making(4, (1,), (one,))])
    assert [again.names[k] for k in again.op_name] == ["F1", "F2", "F3", "B3", "F2 (again)", "B2", "B1"]
    lives = list(zip(again.tensor_born.tolist(), again.tensor_died.tolist(), strict=True))
    assert lives == [(-1, -1), (0, 6), (1, 2), (2, 3), (4, 5)]
    assert remaking.tensor.tolist() == [0, 1, 2, 3, 2]
    assert remaking.at.tolist() == [0, 1, 2, 3, 5, 6]
    assert (remaking.drop_op.tolist(), remaking.make_op.tolist()) == ([3], [4])
    assert remaking.sees.tolist() == [0, 1, 0, 0, 0, 0]
    assert again.chunk_bytes == MIB


@pytest.mark.parametrize("budget", [2, 3])
def test_where_little_can_be_made_again_there_is_a_plan_too(budget: int) -> None:
    """Up to eight chunks in all: not one price was tried then, and the least of none was looked for."""
    trace = with_calls(example(), 0, share=1.0)
    device = lgm.Device(budget, 1e8, 1e8)
    assert candidates(trace, analyze_lifetimes(trace))[1]
    plan = lgm.analyze(trace, device, recompute="auto")
    lgm.validate(plan)
    assert plan.prediction.step_seconds <= lgm.analyze(trace, device).prediction.step_seconds


@pytest.mark.parametrize("seed", range(0, 60, 2))
def test_what_is_made_by_the_way_is_not_moved(seed: int) -> None:
    """It is no tensor of the program's: nobody could move it. (A plan that did crashed the core.)"""
    trace = some_trace(seed)
    calls, makings = some_makings(trace, 1e6)
    if not makings:
        return
    again, remaking = rewrite(trace, calls, makings)
    passing = np.flatnonzero(remaking.tensor < 0)
    assert not np.isin(analyze_lifetimes(again).gaps.tensor, passing).any()
    if len(passing):
        plan = lgm.analyze(again, lgm.Device(int(analyze_lifetimes(again).peak), 1.0, 1.0))
        one = [int(passing[0])]
        with pytest.raises(lgm.LgmError, match="lives only while something is recomputed"):
            replace(plan, remaking=remaking, out_op=[0], out_tensor=one, out_first=[0], out_last=[1])


def test_without_calls_nothing_is_made_again() -> None:
    plan = lgm.analyze(example(), lgm.Device(2, MIB / 1e-2, MIB / 1e-2), recompute="auto")
    assert plan.remaking is None
    with pytest.raises(ValueError, match="recompute='always' is unknown; choose one of auto, never, only"):
        lgm.analyze(example(), lgm.Device(2, 1e9, 1e9), recompute="always")  # type: ignore[arg-type]


def test_what_is_written_between_is_not_what_it_was() -> None:
    """`b` is made of `a`, and `a` is written before `b` is needed again: `b` cannot be made of it."""
    tensors = [(CHUNK, 0, 5), (CHUNK, 1, 5), (CHUNK, 2, 3)]
    uses = [(1, 0, 0, 1, 0), (2, 1, 0, 1, 0), (4, 0, 0, 1, 1), (5, 1, 0, 1, 0), (3, 2, 0, 1, 0)]
    calls = {"call_first": list(range(6)), "call_last": list(range(6)), "call_again": [0, 1, 1, 1, 1, 1]}
    trace = build(6, tensors, uses, **calls)
    assert [one.tensor for one in candidates(trace, analyze_lifetimes(trace))[1]] == []
    kept = build(6, tensors, [use for use in uses if use[0] != 4], **calls)
    assert [one.tensor for one in candidates(kept, analyze_lifetimes(kept))[1]] == [1]


_USE = ("op", "tensor", "first", "last", "write")


@pytest.mark.parametrize(
    "other",
    [
        lambda o: {"tensor_bytes": o.tensor_bytes - (o.tensor_bytes > 1)},
        lambda o: {f"use_{name}": getattr(o, f"use_{name}")[:-1] for name in _USE},
        lambda o: {"use_write": 1 - o.use_write},
    ],
    ids=["sizes", "uses", "writes"],
)
def test_a_plan_that_is_of_another_iteration_than_it_says_is_refused(other: Callable[[lgm.Trace], Any]) -> None:
    trace = with_calls(training(12, 0), 0, share=1.0)
    speed = CHUNK / 2e-3
    plan = lgm.analyze(trace, lgm.Device(int(analyze_lifetimes(trace).peak * 0.55), speed, speed), recompute="auto")
    assert plan.remaking is not None
    origin = replace(plan.remaking.origin, **other(plan.remaking.origin))
    with pytest.raises(lgm.InvalidPlanError, match="remade-trace"):
        lgm.validate(replace(plan, remaking=replace(plan.remaking, origin=origin)))


def test_what_recomputing_needs_beside_takes_room_and_mapping_takes_time() -> None:
    """Row 1 makes `a` of `w` by way of a workspace of four chunks; `a` is dropped, and recomputed before row 4."""
    tensors = [(CHUNK, 0, 5), (2 * CHUNK, 1, 5), (4 * CHUNK, 1, 1)]
    uses = [(1, 0, 0, 1, 0), (4, 1, 0, 2, 0), (5, 0, 0, 1, 0)]
    calls = {"call_first": list(range(6)), "call_last": list(range(6)), "call_again": [0, 1, 0, 0, 0, 0]}
    trace = build(6, tensors, uses, **calls)
    known, (one,) = candidates(trace, analyze_lifetimes(trace))
    again, _ = rewrite(trace, known, [Making(4, (1,), (one,))], switch=1e-4)
    assert analyze_lifetimes(again).live.tolist() == [1, 7, 1, 1, 7, 3, 3]
    assert again.op_ns.tolist() == [1_000_000] * 4 + [1_000_000 + 2 * 2 * 100_000] + [1_000_000] * 2
