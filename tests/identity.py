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
import pytest
import torch

import vtensor
from vtensor import native
from vtensor.devices.math_library import settle

PAGE = 4096
Program = Callable[[], Any]

# For what takes seconds on each kind of ordered device: by default where a budget may be exceeded, as on a GPU whose
# driver cannot use memory of the host in place.
mostly_beyond = pytest.mark.parametrize(
    "late", [False, pytest.param(True, marks=pytest.mark.long)], ids=["beyond the budget", "in place"], indirect=True
)


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


def _bytes(value: torch.Tensor) -> torch.Tensor:
    flat = value.detach().clone(memory_format=torch.contiguous_format).flatten()
    return flat.as_strided((flat.numel(),), (1,)).view(torch.uint8)  # one element may have any stride


def same(left: list[Any], right: list[Any]) -> bool:
    """Equal to the last bit: NaNs by their payload, zeros by their sign."""
    if len(left) != len(right):
        return False
    for a, b in zip(left, right, strict=True):
        if not isinstance(a, torch.Tensor):
            if a != b:
                return False
        elif a.dtype != b.dtype or a.shape != b.shape or not torch.equal(_bytes(a), _bytes(b)):
            return False
    return True


def difference(left: list[Any], right: list[Any]) -> str:
    """Which leaves differ and by how much, for a person to read."""
    lines = []
    for index, (a, b) in enumerate(zip(left, right, strict=True)):
        if same([a], [b]):
            continue
        if not isinstance(a, torch.Tensor) or a.shape != b.shape:
            lines.append(f"leaf {index}: {a} and {b}")
            continue
        wrong = (a != b).flatten().nonzero().flatten()
        size = (a.double() - b.double()).abs().max() if a.is_floating_point() else "-"
        lines.append(
            f"leaf {index} {tuple(a.shape)} {a.dtype}: {len(wrong)} of {a.numel()} elements, {wrong[:3].tolist()} to "
            f"{wrong[-3:].tolist()}, by at most {size}"
        )
    return f"{len(lines)} of {len(left)} leaves differ\n" + "\n".join(lines[:12])


def check_same(got: list[Any], expected: list[Any], program: Program, when: str) -> None:
    """Fail with the difference, and with the answer to whether plain torch gives the same twice."""
    if not same(got, expected):
        text = difference(got, expected)
        again = same(seeded(program), expected)
        raise AssertionError(f"wrong {when}: {text}\nplain torch gives the same bits twice: {again}")


def seeded(program: Program) -> list[Any]:
    settle()
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
    ample: int = 1 << 28,
    overdraw: bool = False,
    **options: Any,
) -> list[dict[str, Any]]:
    """Assert that `program` gives the same bits under each fraction of its peak; return the statistics of each run.

    `overdraw`: on an ordered device an operation larger than the budget may hold more than it, as far as it says so.
    """
    expected = seeded(program)
    settings = {"chunk": chunk, "min_size": min_size, "host": 4 << 30, **options}
    with vtensor.enabled(ample, **settings):
        got = seeded(program)
        stats = vtensor.memory_stats()
        assert stats["evictions"] == 0, "the budget for measuring the peak is too small; raise `ample`"
    check_same(got, expected, program, "without any pressure")
    peak = stats["wanted_bytes.peak"]
    runs = []
    for fraction in fractions:
        with vtensor.enabled(max(int(peak * fraction), 2 * chunk), **settings):
            got = seeded(program)
            stats = vtensor.memory_stats()
            assert native.load().validate() == ""
        check_same(got, expected, program, f"at {fraction:.0%} of {peak} bytes")
        assert stats["held_bytes.peak"] <= stats["budget_bytes"] + (stats["overdrawn_bytes.peak"] if overdraw else 0)
        runs.append(stats)
    return runs
