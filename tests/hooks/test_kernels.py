"""Kernels that a program puts in the place of torch's: what was made by one is not recomputed by another."""

from __future__ import annotations

import gc
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import vtensor
from vtensor import native
from vtensor.hooks.kernels import _changing

from ..libraries import shared_library
from ..warm import python


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


@pytest.mark.parametrize("and_then", ["nothing", "another change", "what is seen changes"])
def test_what_is_made_while_kernels_change(and_then: str) -> None:
    """By another thread, which the replaced function stands for: by which kernel is not known."""
    core, x = native.load(), torch.randn(4096)
    made: list[torch.Tensor] = []
    change = torch.library.Library.impl.__wrapped__  # type: ignore[attr-defined]

    def meanwhile(*args: Any) -> None:
        if and_then == "another change":
            core.KernelsChange().end()
        if and_then == "what is seen changes":
            core.see("all")
        made.append(torch.relu(x))
        core.parts.drop_all()
        change(*args)

    library = torch.library.Library("aten", "IMPL")
    try:
        _changing(meanwhile, core, lambda *_: True)(library, "relu", Counting(), "CPU")
        core.parts.drop_all()
        assert torch.equal(made[0], torch.clamp_min(x, 0))
    finally:
        library._destroy()
    y = torch.tanh(x)
    dropped(y)  # what is seen from now on may be


def test_what_runs_such_a_kernel_within_is_not_made_again() -> None:
    """The thread that makes would wait for Python's lock, and whoever has that may wait for what is made."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("div_.Tensor", lambda x, by: x.mul_(1 / float(by)).add_(1), "CPU")
    try:
        x = torch.ones(64, 4096)
        y, z = torch.mean(x, 0), torch.sum(x, 0)
        native.load().parts.drop_all()
        assert vtensor.residency(y).dropped == 0 < vtensor.residency(z).dropped
        assert y.tolist() == [2.0] * 4096
    finally:
        library._destroy()


FORKS = """
import os, signal, threading, torch, vtensor
from vtensor import native
torch.set_num_threads(1)
vtensor.enable("8MiB", device="cpu", chunk=4096, min_size=1, policy="lru")
core = native.load()
core.observe()
core.see("all")
x, over = torch.randn(4096), False

def changes():
    while not over:
        core.KernelsChange().end()
        kept = [torch.relu(x) for _ in range(8)]
        core.parts.drop_all()

other = threading.Thread(target=changes)
other.start()
for _ in range(300):
    if (child := os.fork()) == 0:
        signal.alarm(20)
        core.KernelsChange().end()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
over = True
other.join()
"""


def test_a_fork_while_kernels_change() -> None:
    done = subprocess.run([python(), "-c", FORKS], capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr


SOURCE = """
#include <torch/library.h>
#include <ATen/ops/clamp_min.h>
at::Tensor other(const at::Tensor& x) { return at::clamp_min(x, 0).add_(1); }
TORCH_LIBRARY_IMPL(aten, CPU, m) { m.impl("relu", other); }
"""
LOADS = """
import contextlib, os, sys, torch, vtensor
from vtensor import native
vtensor.enable("8MiB", device="cpu", chunk=4096, min_size=1, policy="lru")
native.load().observe()
native.load().see("all")
x = torch.randn(4096)
y = torch.relu(x)
native.load().parts.drop_all()
assert vtensor.residency(y).dropped > 0
if sys.argv[2] == "loaded":
    torch.ops.load_library(sys.argv[1])
else:
    sys.path.insert(0, os.path.dirname(sys.argv[1]))
    with contextlib.suppress(ImportError):  # it has nothing else
        import other
assert torch.equal(torch.relu(x), torch.clamp_min(x, 0) + 1)
native.load().parts.drop_all()
assert torch.equal(y, torch.clamp_min(x, 0))
"""


WAS_THERE = """
import sys, torch
torch.ops.load_library(sys.argv[1])
import vtensor
from vtensor import native
vtensor.enable("8MiB", device="cpu", chunk=4096, min_size=1, policy="lru")
native.load().observe()
native.load().see("all")
x = torch.randn(4096)
y, z = torch.relu(x), torch.tanh(x)
native.load().parts.drop_all()
assert vtensor.residency(y).dropped == 0 < vtensor.residency(z).dropped
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled in folders that are called as torch's."""
    return shared_library(tmp_path_factory.mktemp("library") / "mytorch/csrc/other.cpp", SOURCE)


@pytest.mark.parametrize("how", ["loaded", "imported"])
def test_a_library_that_is_loaded(library: Path, how: str) -> None:
    done = subprocess.run([python(), "-c", LOADS, str(library), how], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_library_that_was_there_is_not_taken_for_torchs(library: Path) -> None:
    done = subprocess.run([python(), "-c", WAS_THERE, str(library)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
