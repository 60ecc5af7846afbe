"""Whole-program bit-identity: run a program plain, run it under a budget, compare every byte.

A program is a function without arguments that returns tensors (in any nesting of dict, list and tuple). It is seeded
alike both times; its peak is measured under an unlimited budget first.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch

import vtensor
from vtensor import native

PAGE = 4096
Program = Callable[[], Any]


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item)
    elif isinstance(value, torch.Tensor) and value.layout != torch.strided:
        yield value.detach().to_dense().clone()
    elif isinstance(value, torch.Tensor):
        yield value.detach().clone()
    else:
        yield value


def same(left: list[Any], right: list[Any]) -> bool:
    """Equal to the last bit: NaNs by their payload, zeros by their sign."""
    if len(left) != len(right):
        return False
    for a, b in zip(left, right, strict=True):
        if not isinstance(a, torch.Tensor):
            if a != b:
                return False
        elif (
            a.dtype != b.dtype
            or a.shape != b.shape
            or not torch.equal(a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8))
        ):
            return False
    return True


def seeded(program: Program) -> list[Any]:
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)
    result = list(leaves(program()))
    gc.collect()
    return result


def check_identity(
    program: Program,
    fractions: tuple[float, ...] = (0.5, 0.25),
    *,
    chunk: int = PAGE,
    min_size: int = 1,
    **options: Any,
) -> list[dict[str, Any]]:
    """Assert that `program` gives the same bits under each fraction of its peak; return the statistics of each run."""
    expected = seeded(program)
    settings = {"chunk": chunk, "min_size": min_size, "host": 4 << 30, **options}
    with vtensor.enabled(4 << 30, **settings):
        assert same(seeded(program), expected), "wrong without any pressure"
        peak = vtensor.memory_stats()["wanted_bytes.peak"]
        assert vtensor.memory_stats()["evictions"] == 0
    runs = []
    for fraction in fractions:
        with vtensor.enabled(max(int(peak * fraction), 2 * chunk), **settings):
            got = seeded(program)
            stats = vtensor.memory_stats()
            assert native.load().validate() == ""
        assert same(got, expected), f"wrong at {fraction:.0%} of {peak} bytes"
        assert stats["held_bytes.peak"] <= stats["budget_bytes"]
        runs.append(stats)
    return runs
