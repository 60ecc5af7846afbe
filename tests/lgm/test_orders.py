"""A plan as it is handed to who follows it: every move that it foresees, in the tensors and rows of the recording."""

from __future__ import annotations

import numpy as np
import pytest

import lgm
from lgm.iteration import analyze_lifetimes
from lgm.placing.orders import arrivals_alone, orders
from lgm.records.copies import Copies

from .random_traces import training
from .test_recompute import with_calls


def planned(seed: int, recompute: lgm.Recompute) -> lgm.Plan:
    trace = with_calls(training(12, seed), seed, share=1.0)
    budget = int(analyze_lifetimes(trace).peak * 0.7)
    return lgm.analyze(trace, lgm.Device(budget, 2e5, 2e5), recompute=recompute)


def moved(copies: Copies) -> int:
    return int((copies.last - copies.first).sum())


@pytest.mark.parametrize("seated", [False, True])
@pytest.mark.parametrize("recompute", ["never", "auto"])
@pytest.mark.parametrize("seed", range(6))
def test_all_that_a_plan_moves_is_ordered(seed: int, recompute: lgm.Recompute, seated: bool) -> None:
    plan = planned(seed, recompute)
    given = orders(plan, plan.device.budget_chunks if seated else None)
    trace = plan.recorded
    assert moved(given.departures) == int((plan.out_last - plan.out_first).sum())
    assert moved(given.arrivals) == int((plan.in_last - plan.in_first).sum())
    for copies in (given.departures, given.arrivals, given.drops, given.makes):
        assert (np.diff(copies.op) >= 0).all()
        assert ((copies.tensor >= 0) & (copies.tensor < trace.tensors)).all()  # none that only a rewritten trace has
        assert ((copies.first >= 0) & (copies.last <= trace.chunks[copies.tensor])).all()
    again = plan.remaking
    assert len(given.makes.op) == (0 if again is None else len(again.make_op))
    assert moved(given.drops) == moved(given.makes)
    assert len(given.at) == len(given.sees) == (0 if again is None else trace.operations)
    assert len(given.keep) == trace.tensors
    if len(given.seat_chunk):
        assert not given.keep.any()
        assert len(given.seat_first) == trace.tensors + 1
        assert given.seat_chunk.max() < plan.device.budget_chunks


def test_without_seats_what_is_away_at_the_turn_left_and_did_not_come_back() -> None:
    plan = planned(3, "never")
    tensor, first, last = orders(plan, None).away.T
    assert int((last - first).sum()) == moved_away(plan)
    assert np.isin(tensor, plan.out_tensor).all()


def moved_away(plan: lgm.Plan) -> int:
    """Chunks, counted one by one, of tensors that live on; two iterations long, so that it is the steady state."""
    trace = plan.trace
    away: set[tuple[int, int]] = set()
    for _ in range(2):
        events = [(int(op), 1, k) for k, op in enumerate(plan.out_op)] + [
            (int(op), 2, k) for k, op in enumerate(plan.in_op)
        ]
        events += [(int(op), 0, t) for t, op in enumerate(trace.tensor_born) if op >= 0]
        for _, kind, k in sorted(events):
            if kind == 0:
                away = {(t, c) for t, c in away if t != k}
            elif kind == 1:
                away |= {(int(plan.out_tensor[k]), c) for c in range(plan.out_first[k], plan.out_last[k])}
            else:
                away -= {(int(plan.in_tensor[k]), c) for c in range(plan.in_first[k], plan.in_last[k])}
    return sum(bool(trace.lasting[t] or trace.wraps[t]) for t, _ in away)


def test_arrivals_alone() -> None:
    row = np.array([2, 5])
    given = arrivals_alone(Copies(row, row - 2, row * 0, row * 0 + 1), tensors=9)
    assert moved(given.arrivals) == 2
    assert moved(given.departures) == moved(given.drops) == moved(given.makes) == len(given.away) == 0
    assert given.keep.tolist() == [1] * 9
