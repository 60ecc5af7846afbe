"""Kernels that a program puts in the place of torch's: what was made by one is not made again by another."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import vtensor
from vtensor import native


@pytest.fixture(autouse=True)
def session() -> Iterator[None]:
    with vtensor.enabled("8MiB", device="cpu", chunk=4096, min_size=1, policy="lru"):
        native.load().observe()
        native.load().see("all")
        yield


class Counting:
    """Gives something else each time it runs."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.runs += 1
        return torch.clamp_min(x, 0) + self.runs


def dropped(tensor: torch.Tensor) -> None:
    native.load().parts.drop_all()
    assert vtensor.residency(tensor).dropped > 0


def taken_away(library: torch.library.Library) -> None:
    library._destroy()


def collected(library: torch.library.Library) -> None:
    del library
    gc.collect()


@pytest.mark.parametrize("end", [taken_away, collected])
def test_what_was_made_before(end: Callable[[Any], None]) -> None:
    x = torch.randn(4096)
    expected = torch.relu(x).tolist()
    y = torch.relu(x)
    dropped(y)
    libraries = [torch.library.Library("aten", "IMPL")]
    libraries[0].impl("relu", Counting(), "CPU")
    assert y.tolist() == expected
    native.load().parts.drop_all()
    assert y.tolist() == expected
    end(libraries.pop())
    native.load().parts.drop_all()
    assert y.tolist() == expected
    again = torch.relu(x)
    dropped(again)
    assert again.tolist() == expected


def test_what_is_made_meanwhile_is_not_made_again() -> None:
    x = torch.randn(4096)
    torch.relu(x)  # an operator is looked at once
    library, kernel = torch.library.Library("aten", "IMPL"), Counting()
    library.impl("relu", kernel, "CPU")
    try:
        y = torch.relu(x)
        native.load().parts.drop_all()
        assert torch.equal(y, torch.clamp_min(x, 0) + 1)
        assert kernel.runs == 1
    finally:
        library._destroy()
