"""A plan as arrays: whatever does not fit together is refused in words, and read by nobody."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lgm
from lgm.iteration import analyze_lifetimes
from lgm.placing.orders import orders
from vtensor import native
from vtensor.planning.plans import install
from vtensor.planning.recordings import Recording

from ..lgm.random_traces import training

SLOW = 1e6
BY_TENSOR = ("tensor_bytes", "serial", "previous", "lasting", "keep", "used")
BY_PART = tuple(
    f"{way}_{column}" for way in ("out", "in", "drop", "make") for column in ("op", "tensor", "first", "last")
)


class Handed:
    """What would go to the core."""

    plan: dict[str, Any]

    def install_plan(self, plan: dict[str, Any]) -> None:
        self.plan = plan


@pytest.fixture(scope="module")
def plan() -> dict[str, Any]:
    trace = training(6, 3)
    budget = max(int(analyze_lifetimes(trace).needed.max()), analyze_lifetimes(trace).peak * 2 // 3)
    made = lgm.analyze(trace, lgm.Device(budget, SLOW, SLOW))
    handed, none = Handed(), np.full(trace.tensors, -1, dtype=np.int64)
    births = np.flatnonzero(trace.tensor_born >= 0)
    numbers = np.zeros(trace.tensors, dtype=np.int64)
    recording = Recording(trace, births, none, numbers, trace.lasting.astype(np.int64), followed=False)
    install(handed, orders(made, budget), recording)  # type: ignore[arg-type]
    assert len(handed.plan["out_op"]) and len(handed.plan["in_op"])
    return handed.plan


def take(given: dict[str, Any]) -> None:
    native.load().install_plan(given)
    native.load().forget_plans()


def test_one_that_fits_is_taken(plan: dict[str, Any]) -> None:
    take(plan)


@pytest.mark.parametrize("name", [*BY_TENSOR, *BY_PART])
def test_an_array_of_another_length_is_refused(plan: dict[str, Any], name: str) -> None:
    with pytest.raises(native.load().InvalidUse, match="do not fit"):
        take(plan | {name: np.append(np.asarray(plan[name], dtype=np.int64), 0)})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((f"{way}_tensor", 10**6) for way in ("out", "in", "away")),
        *((f"{way}_op", 10**6) for way in ("out", "in")),
        ("births", 10**6),
    ],
)
def test_a_number_of_nothing_is_refused(plan: dict[str, Any], name: str, value: int) -> None:
    wrong = np.array(plan[name], dtype=np.int64)
    wrong[-1] = value
    with pytest.raises(native.load().InvalidUse, match="do not fit"):
        take(plan | {name: wrong})


def test_rows_in_another_order_are_refused(plan: dict[str, Any]) -> None:
    with pytest.raises(native.load().InvalidUse, match="do not fit"):
        take(plan | {"out_op": np.asarray(plan["out_op"])[::-1].copy()})


def test_marks_of_other_rows_and_no_rows_are_refused(plan: dict[str, Any]) -> None:
    for damaged in ({"sees": np.ones(1, dtype=np.int64)}, {"at": np.zeros(1, dtype=np.int64)}):
        with pytest.raises(native.load().InvalidUse, match="do not fit"):
            take(plan | damaged)
    with pytest.raises(native.load().InvalidUse, match="do not fit"):
        take(plan | {"op_name": np.zeros(0, dtype=np.int64)})
