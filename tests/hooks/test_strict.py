"""Strict mode, on the ordered device in ordinary memory: what is read while it is away fails, and is named."""

from __future__ import annotations

import signal
import subprocess

import pytest
import torch

import vtensor
from vtensor import native
from vtensor.hooks.strict import explain

from ..identity import check_identity, mostly_beyond
from ..programs.test_programs import MODELS, OPTIMIZERS, training
from ..warm import python

PLANTED = """
import ctypes, sys
import torch, vtensor
from vtensor.session import lifecycle
from vtensor import native
from vtensor.addresses import address_of

strict = sys.argv[1] == "strict"
module = native.load()
lifecycle._start = lambda c: module.parts.start_late(
    c.budget_chunks, c.chunk, c.host, c.policy, c.min_size, 1, False, c.leaving, strict)
vtensor.enable("32KiB", chunk=4096, min_size=1, host="64MiB", policy="lru")
victim = torch.full((1024,), 7.0)
first = torch.empty(1).copy_(victim[:1])  # seen by an operation, so it may leave
others = [torch.full((1024,), float(k)).add_(0) for k in range(100, 140)]
assert vtensor.residency(victim).resident == 0
read = ctypes.c_float.from_address(address_of(victim)).value  # as a kernel would that nobody sees
print("read", read, flush=True)
"""


@pytest.mark.parametrize("strict", [False, True])
def test_a_planted_kernel(strict: bool) -> None:
    command = [python(), "-c", PLANTED, "strict" if strict else "as ever"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if strict:
        assert done.returncode == -signal.SIGSEGV, done.stderr
        assert "read" not in done.stdout
    else:
        assert done.returncode == 0, done.stderr
        assert float(done.stdout.split()[-1]) != 7.0  # what it is there for: wrong without a word


@mostly_beyond
def test_training_is_right_all_the_same(late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VTENSOR_STRICT", "1")
    (stats,) = check_identity(lambda: training(MODELS["gpt2"], OPTIMIZERS["adamw"]), (0.4,), overdraw=not late)
    assert stats["evictions"] > 0 and stats["planned_iterations"] > 0


def kernel(given: torch.Tensor, words: str) -> None:
    raise RuntimeError(f"CUDA error: {words}")


def failure(given: torch.Tensor, words: str) -> str:
    try:
        kernel(given, words)
    except RuntimeError as error:
        return explain(native.load(), error, error.__traceback__)
    raise AssertionError


def test_what_was_away_is_named(late: bool) -> None:
    with vtensor.enabled("32KiB", chunk=4096, min_size=1, host="64MiB", policy="lru"):
        victim = torch.full((2, 1024), 7.0).add_(0)
        others = [torch.full((1024,), float(k)).add_(0) for k in range(40)]
        said = failure(victim, "an illegal memory access was encountered")
        assert f"given, float32 [2, 1024], 2 of 2 chunks: {__file__}, line" in said
        assert "in kernel" in said and "torch.library" in said
        assert "somebody kept an address" in failure(others[-1], "an illegal memory access was encountered")
        assert failure(victim, "out of memory") == ""
