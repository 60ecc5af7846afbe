"""Random programs of torch operations under random budgets: equal to plain torch, bit for bit.

hypothesis draws instructions and an interpreter runs them on a pool of tensors; operands are chosen by number, so that
every list of instructions is a valid program. An instruction torch refuses is refused in both runs. Run more of them
with ``VTENSOR_HYPOTHESIS=long pytest tests/programs/test_random_programs.py``.
"""

from __future__ import annotations

import contextlib
import copy
import os
import threading
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import torch
from hypothesis import given
from torch import nn
from torch.utils.checkpoint import checkpoint

import vtensor
from vtensor import native
from vtensor.addresses import address_of

from ..identity import PAGE, leaves, same

SIDE = 40  # a tensor of SIDE x SIDE floats takes two vTensors of a page


class Machine:
    """One thread's pool of tensors."""

    budget = 0

    def __init__(self, seed: int) -> None:
        self.random = torch.Generator().manual_seed(seed)
        self.pool: list[torch.Tensor] = [self.fresh() for _ in range(3)]
        self.refusals: list[str] = []

    def fresh(self) -> torch.Tensor:
        return torch.randn(SIDE, SIDE, generator=self.random)

    def run(self, instructions: list[tuple[str, int, int, int]]) -> Any:
        for name, a, b, n in instructions:
            x, y = self.pool[a % len(self.pool)], self.pool[b % len(self.pool)]
            try:
                result = OPERATIONS[name](self, x, y, n)
            except (RuntimeError, ValueError, TypeError, IndexError) as error:
                self.refusals.append(type(error).__name__)
                continue
            for tensor in result if isinstance(result, (list, tuple)) else [result]:
                if isinstance(tensor, torch.Tensor):
                    self.pool.append(tensor)
            del self.pool[: max(0, len(self.pool) - 24)]
        return [t.detach().clone() for t in self.pool], self.refusals


def _backward(m: Machine, x: torch.Tensor, y: torch.Tensor, n: int) -> Any:
    leaf = x.detach().clone().requires_grad_()
    hidden = leaf
    for _ in range(1 + n % 4):
        hidden = torch.tanh(hidden * 1.1) if n % 3 else checkpoint(torch.tanh, hidden, use_reentrant=False)
    (hidden * y.detach()).sum().backward()
    return leaf.grad


def _double_backward(m: Machine, x: torch.Tensor, y: torch.Tensor, n: int) -> Any:
    leaf = x.detach().clone().requires_grad_()
    (first,) = torch.autograd.grad((leaf.sin() * y.detach()).sum(), leaf, create_graph=True)
    return torch.autograd.grad(first.pow(2).sum(), leaf)


def _numpy_write(m: Machine, x: torch.Tensor, y: torch.Tensor, n: int) -> Any:
    array = x.detach().numpy()
    m.pool.append(m.fresh())
    array[n % array.shape[0]] = n
    return torch.from_numpy(array.copy())


def _raw_read(m: Machine, x: torch.Tensor, y: torch.Tensor, n: int) -> Any:
    return torch.tensor(x.detach().flatten()[: 1 + n].tolist())


def _adam(m: Machine, x: torch.Tensor, y: torch.Tensor, n: int) -> Any:
    parameters = [nn.Parameter(t.detach().clone()) for t in (x, y)]
    optimizer = torch.optim.AdamW(parameters, lr=0.01, foreach=n % 2 == 0, fused=n % 2 == 1)
    for _ in range(2):
        for p in parameters:
            p.grad = p.detach().cos()
        optimizer.step()
    return [p.detach() for p in parameters]


def _forget(m: Machine, x: torch.Tensor, y: torch.Tensor, n: int) -> None:
    del m.pool[n % len(m.pool)]
    if not m.pool:
        m.pool.append(m.fresh())


def _disturb(m: Machine, x: torch.Tensor, y: torch.Tensor, n: int) -> None:
    """What a plan, a person or another process may do to memory at any moment. Nothing, for a program."""
    if not vtensor.is_enabled():
        return
    core = native.load()
    match n % 8:
        case 0:
            core.parts.drop_all()
        case 1:
            core.parts.evict_all()
        case 2 if threading.current_thread() is threading.main_thread():
            _fork(x)
        case 3:
            with contextlib.suppress(MemoryError):
                native.load().resize(max(m.budget + n - 15, 1))
        case _:
            core.parts.drop(address_of(x if n % 2 else y))


def _fork(x: torch.Tensor) -> None:
    expected, pid = x.detach().clone(), os.fork()
    if pid == 0:
        torch.set_num_threads(1)
        os._exit(0 if same([x.detach()], [expected]) else 1)
    assert os.waitpid(pid, 0)[1] == 0


Operation = Callable[[Machine, torch.Tensor, torch.Tensor, int], Any]
OPERATIONS: dict[str, Operation] = {
    "fresh": lambda m, x, y, n: m.fresh(),
    "zeros": lambda m, x, y, n: torch.zeros(SIDE, SIDE + n),
    "large": lambda m, x, y, n: torch.arange(float(SIDE * SIDE * 4)).reshape(4 * SIDE, SIDE) + n,
    "add": lambda m, x, y, n: x + y,
    "mul": lambda m, x, y, n: x * y,
    "sin": lambda m, x, y, n: x.sin(),
    "matmul": lambda m, x, y, n: x @ y,
    "softmax": lambda m, x, y, n: x.softmax(-1),
    "where": lambda m, x, y, n: torch.where(x > 0, x, y),
    "sort": lambda m, x, y, n: x.sort(dim=-1),
    "sum": lambda m, x, y, n: x.sum(0, keepdim=True),
    "cumsum": lambda m, x, y, n: x.cumsum(-1),
    "cat": lambda m, x, y, n: torch.cat([x[:SIDE], y[:SIDE]])[: 2 * SIDE],
    "stack": lambda m, x, y, n: torch.stack([x, y]).mean(0),
    "gather": lambda m, x, y, n: x[torch.arange(n, -1, -1) % x.shape[0]],
    "embedding": lambda m, x, y, n: nn.functional.embedding(torch.arange(n + 1) % x.shape[0], x),
    "layer_norm": lambda m, x, y, n: nn.functional.layer_norm(x, x.shape[-1:]),
    "convolve": lambda m, x, y, n: nn.functional.conv1d(x[None], y[:8, None, :3].expand(8, x.shape[0], 3))[0],
    "bfloat": lambda m, x, y, n: x.to(torch.bfloat16).float(),
    "transpose": lambda m, x, y, n: x.transpose(-1, -2),
    "slice": lambda m, x, y, n: x[n % 7 :: 1 + n % 3],
    "expand": lambda m, x, y, n: x[:1].expand(SIDE, x.shape[-1]),
    "reshape": lambda m, x, y, n: x.reshape(-1)[: SIDE * SIDE].reshape(-1, 1 + n % 4),
    "strided": lambda m, x, y, n: x.as_strided((SIDE, 3), (n % 5, 1)),
    "chunk": lambda m, x, y, n: x.chunk(2 + n % 3),
    "clone": lambda m, x, y, n: x.clone(),
    "contiguous": lambda m, x, y, n: x.contiguous(),
    "deepcopy": lambda m, x, y, n: copy.deepcopy(x.detach()),
    "add_": lambda m, x, y, n: x.add_(y),
    "mul_": lambda m, x, y, n: x.mul_(0.5 + n / 8),
    "zero_": lambda m, x, y, n: x[n % x.shape[0]].zero_(),
    "copy_": lambda m, x, y, n: x.copy_(y),
    "assign": lambda m, x, y, n: x.__setitem__(slice(0, 2 + n), y[: 2 + n]),
    "masked": lambda m, x, y, n: x.masked_fill_(y > 0.5, n),
    "index_add_": lambda m, x, y, n: x.index_add_(0, torch.tensor([0, n % x.shape[0], 0]), y[:3]),
    "resize_": lambda m, x, y, n: torch.empty(0).resize_(SIDE * (n + 1)).copy_(x.flatten()[: SIDE * (n + 1)]),
    "out": lambda m, x, y, n: torch.mul(x, y, out=torch.empty(0)),
    "foreach": lambda m, x, y, n: torch._foreach_add(torch._foreach_mul([x, y, x], 2.0), [y, x, x]),
    "foreach_": lambda m, x, y, n: torch._foreach_mul_([x, y], 0.9),
    "norm": lambda m, x, y, n: torch.stack(torch._foreach_norm([x, y])).expand(3, 2),
    "sparse": lambda m, x, y, n: (x * (x > 1)).to_sparse().coalesce().to_dense(),
    "backward": _backward,
    "double_backward": _double_backward,
    "numpy_write": _numpy_write,
    "raw_read": _raw_read,
    "adam": _adam,
    "forget": _forget,
    "disturb": _disturb,
}

# Disturbed as often as computed.
NAMES = sorted(OPERATIONS) + ["disturb"] * 12
instruction = st.tuples(st.sampled_from(NAMES), st.integers(0, 23), st.integers(0, 23), st.integers(0, 30))
program = st.lists(instruction, min_size=4, max_size=60)


def run_all(programs: list[list[tuple[str, int, int, int]]]) -> list[Any]:
    results: list[Any] = [None] * len(programs)

    def one(index: int) -> None:
        results[index] = Machine(index).run(programs[index])

    threads = [threading.Thread(target=one, args=(i,)) for i in range(1, len(programs))]
    for thread in threads:
        thread.start()
    one(0)
    for thread in threads:
        thread.join()
    return list(leaves(results))


@given(
    programs=st.lists(program, min_size=1, max_size=3),
    budget=st.integers(1, 60),
    policy=st.sampled_from(["lru", "size_staleness", "delta"]),
    granularity=st.sampled_from(["chunk", "tensor"]),
    seen=st.sampled_from(["nothing", "all", "all"]),
    recompute=st.sampled_from(["auto", "auto", "only"]),
)
def test_random_programs(
    programs: list[Any], budget: int, policy: Any, granularity: Any, seen: str, recompute: Any
) -> None:
    expected = run_all(programs)
    Machine.budget = budget
    settings: dict[str, Any] = {"policy": policy, "granularity": granularity, "recompute": recompute}
    with vtensor.enabled(budget * PAGE, chunk=PAGE, min_size=1, host=1 << 30, **settings):
        native.load().observe()
        if recompute == "auto":
            native.load().see(seen)
        got = run_all(programs)
        assert native.load().validate() == ""
        stats = vtensor.memory_stats()
    assert stats["held_bytes.peak"] <= (budget + 15) * PAGE
    assert same(got, expected)
