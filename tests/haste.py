"""Plans made in a fifth of the time, in the program: for tests of what follows plans, not of how good they are.

Covers: the planner's effort, for the length of a module of tests, and no process to begin. Leaves: plans (:mod:`lgm`,
whose tests take the time that it takes).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import lgm
from lgm.planning import planner, relief
from lgm.remaking import mix
from vtensor.planning import stages
from vtensor.planning.helper import analyze_here

__all__ = ["plans_in_haste"]


def _here(trace: lgm.Trace, device: lgm.Device, recompute: lgm.Recompute, **_: Any) -> lgm.Plan:
    return analyze_here(trace, device, recompute)


@pytest.fixture(autouse=True, scope="module")
def plans_in_haste() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mix, "_TRIES", 2)
        patch.setattr(planner, "_SMALL", 0)
        patch.setattr(planner, "_EFFORT", 5_000)
        patch.setattr(relief, "_EFFORT", 0)
        patch.setattr(stages, "analyze", _here)
        yield
