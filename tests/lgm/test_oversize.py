"""Operations that need more than the budget: what they use in place, and that the rest is planned."""

from __future__ import annotations

import numpy as np
import pytest

import lgm
from lgm import Device
from lgm.iteration import analyze_lifetimes
from lgm.iteration.calls import Calls
from lgm.planning.oversize import beyond, within

from .random_traces import CHUNK, build, first_of, lawless, training


def test_what_fits_is_not_touched() -> None:
    trace = training(5)
    assert within(trace, int(analyze_lifetimes(trace).needed.max())) is trace


def test_the_ends_of_the_largest_are_used_in_place() -> None:
    tensors = [(4 * CHUNK, -1, -1), (2 * CHUNK, -1, -1), (CHUNK, 1, -1)]
    trace = build(3, tensors, [(0, 0, 0, 4, 1), (1, 0, 0, 4, 0), (1, 1, 0, 2, 1), (2, 1, 0, 2, 0)])
    less = within(trace, 5)
    assert analyze_lifetimes(trace).needed.tolist() == [4, 7, 2]
    assert analyze_lifetimes(less).needed.tolist() == [4, 5, 2]
    assert less.use_last.tolist() == [4, 2, 2, 2]
    assert within(trace, 3).use_last.tolist() == [3, 1, 1, 2]  # a chunk of each stays
    with pytest.raises(lgm.InfeasibleError, match=r"needs 3\.00 KiB at once") as raised:
        lgm.analyze(within(trace, 2), Device(2, 1e6, 1e6))
    told = str(beyond(raised.value, trace))
    assert "There is a plan from 3.00 KiB on; from 7.00 KiB on nothing is used in place" in told


def test_operations_around_and_within_agree() -> None:
    trace = build(
        3, [(6 * CHUNK, -1, -1), (3 * CHUNK, 1, 2)],
        [(0, 0, 0, 6, 0), (1, 0, 0, 6, 1), (2, 1, 0, 3, 0)], op_last=[2, 1, 2],
    )  # fmt: skip
    less = within(trace, 7)
    assert analyze_lifetimes(trace).needed.tolist() == [6, 9, 9]
    assert analyze_lifetimes(less).needed.tolist() == [4, 7, 7]
    assert less.use_last.tolist() == [4, 4, 3]


def test_what_is_made_is_smaller_where_that_is_too_much() -> None:
    trace = build(
        3, [(2 * CHUNK, -1, -1), (6 * CHUNK, 0, 2), (3 * CHUNK, 0, 2)],
        [(0, 0, 0, 2, 0), (1, 1, 4, 6, 1), (1, 2, 0, 3, 0), (2, 1, 0, 6, 0)],
    )  # fmt: skip
    assert analyze_lifetimes(trace).needed.tolist() == [11, 5, 6]
    less = within(trace, 5)
    assert less.chunks.tolist() == [2, 1, 3] and analyze_lifetimes(less).needed.max() == 5
    assert less.use_first.tolist() == [0, 0, 0, 0] and less.use_last.tolist() == [1, 1, 3, 1]
    lgm.validate(lgm.analyze(less, Device(5, 1e6, 1e6)))
    assert within(trace, 8).chunks.tolist() == [2, 4, 3]  # a chunk of what is used stays


@pytest.mark.parametrize("layers", [2, 3, 5, pytest.param(7, marks=pytest.mark.long)])
def test_every_budget_that_holds_a_chunk_of_each_tensor_has_a_plan(layers: int) -> None:
    trace = training(layers, layers)
    least = int(analyze_lifetimes(within(trace, 1)).needed.max())
    assert least < analyze_lifetimes(trace).needed.max()
    for budget in range(least, least + 12):
        lgm.validate(lgm.analyze(within(trace, budget), Device(budget, 1e6, 1e6)))


@pytest.mark.parametrize("seed", first_of(150, quick=30))
def test_only_what_is_too_much_is_taken_and_plans_hold(seed: int) -> None:
    trace = lawless(seed)
    needed = analyze_lifetimes(trace).needed
    for budget in sorted({1 + int(needed.max()) * k // 4 for k in range(4)}):
        less = within(trace, budget)
        after = analyze_lifetimes(less).needed
        assert (after <= needed).all()
        assert after.max() <= budget or within(less, budget) is less
        smaller = less.chunks < trace.chunks
        for t in np.flatnonzero(smaller).tolist():
            rows = slice(trace.tensor_born[t], np.maximum.accumulate(trace.op_last)[trace.tensor_born[t]] + 1)
            assert trace.tensor_born[t] >= 0 and needed[rows].max() > budget, "made smaller where nothing was too much"
        cut = np.flatnonzero((less.use_last != trace.use_last) & ~smaller[trace.use_tensor])
        for use in cut.tolist():
            rows = slice(trace.use_op[use], trace.op_last[trace.use_op[use]] + 1)
            assert needed[rows].max() > budget, "a use was shortened in which nothing was too much"
        assert (less.use_last <= less.chunks[less.use_tensor]).all()
        assert (less.use_last > less.use_first)[trace.use_last > trace.use_first].all()
        if after.max() <= budget:
            lgm.validate(lgm.analyze(less, Device(budget, 1e6, 1e6), recompute="never"))
    known, same = Calls.of(trace), Calls.of(within(trace, 1))
    assert (known.reads, known.writes, known.makes) == (same.reads, same.writes, same.makes)
