"""Optimal checkpoints against every choice there is."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest

from lgm.checkpoints import least_peak, least_peak_without_freeing, peak_of, peak_of_without_freeing
from lgm.errors import LgmError


def chain(seed: int) -> list[float]:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 11))
    kind = seed % 4
    if kind == 0:
        return [1.0] * n
    if kind == 1:
        return rng.integers(0, 4, n).astype(float).tolist()  # type: ignore[no-any-return]
    if kind == 2:
        return np.sort(rng.random(n))[::-1].tolist()  # type: ignore[no-any-return]
    return rng.lognormal(0, 2, n).tolist()  # type: ignore[no-any-return]


def choices(n: int) -> list[list[int]]:
    if n == 1:
        return [[0]]
    inner = range(1, n - 1)
    sets = itertools.chain.from_iterable(itertools.combinations(inner, k) for k in range(n - 1))
    return [[0, *some, n - 1] for some in sets]


@pytest.mark.parametrize("block", range(20))
def test_nothing_is_better(block: int) -> None:
    for seed in range(100 * block, 100 * block + 100):
        size = chain(seed)
        held = None if seed % 2 else (np.array(size) * np.random.default_rng(seed).random(len(size))).tolist()
        for best_of, of in ((least_peak, peak_of), (least_peak_without_freeing, peak_of_without_freeing)):
            peak, kept = best_of(size, held)
            assert np.isclose(peak, min(of(size, each, held) for each in choices(len(size)))), (seed, of.__name__)
            assert np.isclose(peak, of(size, kept, held)), (seed, of.__name__)


def test_long_chains_are_no_work() -> None:
    size = np.random.default_rng(0).random(2000)
    begun = time.perf_counter()
    peak, kept = least_peak(size)
    seconds = time.perf_counter() - begun
    assert np.isclose(peak, peak_of(size, kept))
    assert seconds < 2
    every = peak_of(size, range(2000))
    root = [*range(0, 1999, 45), 1999]
    assert peak < peak_of(size, root) < every


def test_a_uniform_chain_needs_about_two_roots() -> None:
    """Backward frees from the end, so later segments may be longer: less than the square root's 2 sqrt(n)."""
    peak, kept = least_peak([1.0] * 64)
    assert peak < 2 * 8 + 2
    assert len(kept) < 16


@pytest.mark.parametrize("size", [[], [1.0, -1.0], [float("nan")], [[1.0]]])
def test_what_is_no_chain(size: object) -> None:
    with pytest.raises(LgmError, match="a chain is a row of sizes"):
        least_peak(size)  # type: ignore[arg-type]


@pytest.mark.parametrize("kept", [[], [0], [1, 2], [0, 2, 1, 2]])
def test_what_is_no_choice(kept: list[int]) -> None:
    with pytest.raises(LgmError, match="checkpoints are layers in order"):
        peak_of([1.0, 2.0, 3.0], kept)
