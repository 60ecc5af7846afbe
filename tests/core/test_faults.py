"""When things go wrong: a clear error, the state as before, training goes on, nothing leaks."""

from __future__ import annotations

import gc
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import vtensor
from vtensor import native

from ..identity import check_identity, same, seeded
from ..warm import python

PAGE = 4096
ELEMENTS = 8 * PAGE // 4


def nothing_is_pinned() -> bool:
    module = native.load()
    module.parts.evict_all()
    return module.snapshot()["held_chunks"] == 0 and module.validate() == ""


def fill_until_refused(tensors: list[torch.Tensor]) -> str:
    with pytest.raises(torch.OutOfMemoryError) as caught:
        while True:
            tensors.append(torch.full((ELEMENTS,), float(len(tensors))))
    message = str(caught.value)
    del caught
    gc.collect()
    return message


def test_host_store_full(everything: Callable[..., None]) -> None:
    everything(16 * PAGE, host=32 * PAGE)
    tensors: list[torch.Tensor] = []
    message = fill_until_refused(tensors)
    for part in ("host store is full", "budget 64.00 KiB", "spill_dir", "intact"):
        assert part in message, message
    assert native.load().validate() == ""
    count = len(tensors)
    assert count >= 5
    assert all((t.numpy() == i).all() for i, t in enumerate(tensors))  # not even a comparison has room
    vtensor.enable(64 * PAGE)  # a larger budget, and it goes on
    tensors += [torch.full((ELEMENTS,), float(i)) for i in range(count, count + 3)]
    assert all((t == i).all() for i, t in enumerate(tensors))
    del tensors
    assert nothing_is_pinned()


def test_training_goes_on_with_a_smaller_batch(everything: Callable[..., None]) -> None:
    everything(64 * PAGE, host=128 * PAGE)
    net = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    optimizer = torch.optim.AdamW(net.parameters())

    def step(batch: int) -> None:
        optimizer.zero_grad()
        net(torch.ones(batch, 64)).pow(2).mean().backward()
        optimizer.step()

    step(32)
    weights = [p.detach().clone() for p in net.parameters()]
    with pytest.raises(torch.OutOfMemoryError):
        step(4096)
    assert all(torch.equal(p, w) for p, w in zip(net.parameters(), weights, strict=True))
    step(32)
    assert not torch.equal(net[0].weight, weights[0])
    assert native.load().validate() == ""


def test_disk_full(tmp_path: Path) -> None:
    code = f"""
import resource, torch, vtensor
from vtensor import native
resource.setrlimit(resource.RLIMIT_FSIZE, (32 * 4096, resource.RLIM_INFINITY))
vtensor.enable(16 * 4096, chunk=4096, min_size=1, spill_dir={str(tmp_path)!r})
tensors = []
try:
    while True:
        tensors.append(torch.full((8192,), float(len(tensors))))
except torch.OutOfMemoryError as error:
    print(error)
assert all((t.numpy() == i).all() for i, t in enumerate(tensors)), "data was lost"
del tensors[3:]
tensors.append(torch.full((8192,), 3.0))
assert all((t == i).all() for i, t in enumerate(tensors))
assert native.load().validate() == ""
print("went on")
"""
    done = subprocess.run([python(), "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "host store is full (File too large)" in done.stdout and "went on" in done.stdout


def test_exceptions_inside_operations_unpin_everything(everything: Callable[..., None]) -> None:
    everything(20 * PAGE)
    a, b = torch.ones(64, 64), torch.ones(65, 64)
    filler = [torch.ones(ELEMENTS) for _ in range(3)]
    for _ in range(3):
        with pytest.raises(RuntimeError):
            a @ b
        with pytest.raises((RuntimeError, IndexError)):
            filler[0][torch.tensor([10**9])]
        with pytest.raises(RuntimeError):
            torch.linalg.cholesky(-a)
    assert nothing_is_pinned()


def test_exceptions_in_backward(everything: Callable[..., None]) -> None:
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            raise ValueError("in backward")

    everything(20 * PAGE)
    x = torch.randn(64, 64, requires_grad=True)
    for _ in range(3):
        with pytest.raises(ValueError, match="in backward"):
            Fails.apply(x.sin()).cos().sum().backward()
    gc.collect()
    assert nothing_is_pinned()


def test_keyboard_interrupt_and_going_on() -> None:
    def program(interrupt: bool) -> Any:
        net = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3)))
        optimizer = torch.optim.AdamW(net.parameters())
        for step in range(4):
            x = torch.randn(64, 64)
            if interrupt and step == 2:
                handle = net[1].register_full_backward_hook(lambda *_: signal.raise_signal(signal.SIGINT))
                with pytest.raises(KeyboardInterrupt):
                    net(x).sum().backward()
                handle.remove()
            optimizer.zero_grad()
            net(x).pow(2).sum().backward()
            optimizer.step()
        return list(net.parameters())

    expected = seeded(lambda: program(False))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job begins with it ignored
    try:
        with vtensor.enabled(40 * PAGE, chunk=PAGE, min_size=1, host=1 << 28):
            got = seeded(lambda: program(True))
            gc.collect()
            assert nothing_is_pinned()
    finally:
        signal.signal(signal.SIGINT, before)
    assert same(got, expected)


def test_operations_larger_than_the_budget_borrow(capfd: pytest.CaptureFixture[str]) -> None:
    def program() -> Any:
        a = torch.arange(20 * PAGE // 4, dtype=torch.float32)
        b = a * 2 + 1
        a.add_(b)  # in place: allocates nothing, needs twice the budget
        c = torch.cat([a, b, a])
        c.mul_(0.5).sub_(1)
        return a, b, c, c.sum(), c.sort(descending=True)

    expected = seeded(program)
    with vtensor.enabled(10 * PAGE, chunk=PAGE, min_size=1, host=1 << 28):
        got = seeded(program)
        stats = vtensor.memory_stats()
        assert native.load().validate() == ""
    assert same(got, expected)
    assert stats["oversize"] > 0 and stats["borrowed_bytes.peak"] > 0
    assert stats["held_bytes.peak"] <= 10 * PAGE


def test_the_warning_names_the_operation() -> None:
    code = """
import torch, vtensor
vtensor.enable(10 * 4096, chunk=4096, min_size=1)
a = torch.ones(8 * 1024)
b = torch.cat([a, a]); b.add_(1); b.mul_(2)
"""
    done = subprocess.run([python(), "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stderr.count(" needs 64.00 KiB, more than the budget of 40.00 KiB. A budget of about 96.00 KiB") == 1
    assert "aten::" in done.stderr


def test_the_warning_says_why_less_than_the_budget_finds_no_room() -> None:
    code = """
import torch, vtensor
vtensor.enable(10 * 4096, chunk=4096, min_size=1)
a, b = torch.ones(6 * 1024), torch.ones(6 * 1024)
a + b
"""
    done = subprocess.run([python(), "-c", code], capture_output=True, text=True, timeout=120, check=True)
    why = "which the budget of 40.00 KiB cannot free: data in use by running operations"
    assert f"aten::add needs room for 8.00 KiB more, {why}" in done.stderr


def test_the_warning_says_that_the_host_store_is_full() -> None:
    """And how much had no room when there was none, whatever came back since."""
    code = """
import torch, vtensor
vtensor.enable(16 * 4096, chunk=4096, min_size=1, host=8 * 4096)
tensors = []
try:
    while True: tensors.append(torch.ones(5 * 1024))
except torch.OutOfMemoryError: pass
for each in tensors: each.sum()
"""
    done = subprocess.run([python(), "-c", code], capture_output=True, text=True, timeout=120, check=True)
    said = re.search(r"aten::sum needs room for ([\d.]+) KiB more, .*: the host store is full", done.stderr)
    assert said is not None and 0 < float(said[1]) <= 20, done.stderr


def test_oversize_raise_says_what_would_help(everything: Callable[..., None]) -> None:
    everything(16 * PAGE, oversize="raise")
    a = torch.ones(10 * PAGE // 4)
    a.add_(0)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        a.mul(2)
    message = str(caught.value)
    for part in ("aten::mul", "pinned", "budget of at least", 'oversize="borrow"', "intact"):
        assert part in message, message
    assert (a == 1).all() and native.load().validate() == ""
    vtensor.enable(32 * PAGE)
    assert (a.mul(2) == 2).all()


def test_the_budget_that_is_named_would_do(everything: Callable[..., None]) -> None:
    everything(16 * PAGE, oversize="raise")
    with pytest.raises(torch.OutOfMemoryError, match="it alone is larger than the budget") as caught:
        torch.empty(20 * PAGE + 1, dtype=torch.uint8)
    said = re.search(r"a budget of at least ([\d.]+ KiB)", str(caught.value))
    assert said is not None
    vtensor.enable(said[1])
    assert torch.empty(20 * PAGE + 1, dtype=torch.uint8).nbytes == 20 * PAGE + 1


def test_a_model_trains_below_its_largest_operation() -> None:
    def program() -> Any:
        net = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64))
        optimizer = torch.optim.AdamW(net.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.randn(32, 64)).pow(2).sum().backward()
            optimizer.step()
        return list(net.parameters()), optimizer.state_dict()["state"]

    runs = check_identity(program, (0.05, 0.02))
    assert runs[-1]["oversize"] > 0


def test_out_of_memory_keeps_no_references(everything: Callable[..., None]) -> None:
    everything(16 * PAGE, host=16 * PAGE)
    tensors: list[torch.Tensor] = []
    fill_until_refused(tensors)
    del tensors
    assert nothing_is_pinned()
    assert native.load().snapshot()["ranges"] == 0


def test_the_budget_that_is_named_for_an_operation_would_do(everything: Callable[..., None]) -> None:
    everything(16 * PAGE, oversize="raise")
    a = torch.ones(10 * PAGE // 4)
    with pytest.raises(torch.OutOfMemoryError, match="aten::mul") as caught:
        a.mul(2)
    said = re.search(r"a budget of at least ([\d.]+ KiB)", str(caught.value))
    assert said is not None
    vtensor.enable(said[1])
    assert (a.mul(2) == 2).all()


@pytest.mark.parametrize("oversize", ["borrow", "raise"])
def test_what_there_is_no_room_for_makes_nothing_leave(everything: Callable[..., None], oversize: str) -> None:
    everything(16 * PAGE, host=32 * PAGE, oversize=oversize)
    kept = torch.ones(12 * PAGE, dtype=torch.uint8)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(64 * PAGE, dtype=torch.uint8)
    assert vtensor.residency(kept).resident == 12
    assert vtensor.memory_stats()["moved_out_bytes"] == 0
