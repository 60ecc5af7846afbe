"""Copies in for a policy that decides by itself what leaves."""

from __future__ import annotations

import numpy as np
import pytest

from lgm import Device
from lgm.timing.prefetch import prefetch

from .random_traces import CHUNK, build, lawless


def test_a_copy_begins_as_late_as_the_lane_allows() -> None:
    uses = [(0, 0, 0, 1, 1), (1, 1, 0, 1, 1), (8, 0, 0, 1, 0), (9, 1, 0, 1, 0)]
    trace = build(10, [(CHUNK, 0, 9), (CHUNK, 1, 9)], uses)  # of 1 ms each; a copy takes two of them
    found = prefetch(trace, np.array([0, 0, 1, 1]), Device(2, 1e9, CHUNK / 0.002))
    assert found.tensor.tolist() == [0, 1]
    assert found.op.tolist() == [5, 7]


def test_none_begins_before_the_use_after_which_it_left() -> None:
    uses = [(0, 0, 0, 4, 1), (5, 0, 0, 1, 0), (6, 0, 1, 4, 0)]
    trace = build(8, [(4 * CHUNK, 0, 7)], uses)
    found = prefetch(trace, np.array([0, 0, 3]), Device(4, 1e9, CHUNK / 0.1))
    assert found.op.tolist() == [6]
    assert (found.first.tolist(), found.last.tolist()) == ([1], [4])


@pytest.mark.parametrize("seed", range(200))
def test_whatever_was_away(seed: int) -> None:
    trace = lawless(seed)
    missing = np.random.default_rng(seed).integers(0, 3, len(trace.use_op))
    found, away = prefetch(trace, missing, Device(4, 1e6, 1e6)), np.flatnonzero(missing)
    assert len(found.op) == len(away)
    assert (np.diff(found.op) >= 0).all()
    assert ((found.op >= 0) & (found.op < trace.operations)).all()
    assert sorted(found.tensor.tolist()) == sorted(trace.use_tensor[away].tolist())
