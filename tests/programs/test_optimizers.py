"""Every optimizer of torch's own test database, in each of its settings, on an ordered device, its states absent.

As ``test_operators``, for lists of tensors and for what is written in place: the same bits as without vtensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import vtensor
from vtensor import native

from ..identity import mostly_beyond, same
from .test_operators import BUDGET, CHUNK, emptying


def optimizers() -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Name, entry of the database, settings."""
    common = pytest.importorskip("torch.testing._internal.common_optimizers")
    for entry in common.optim_db:
        for given in entry.optim_inputs_func(device="cpu", dtype=torch.float32):
            for kind in ({}, *({k: True} for k in entry.supported_impls if k in ("foreach", "fused"))):
                settings = {**given.kwargs, **kind}
                yield f"{entry.optim_cls.__name__} {settings}", entry, settings


def train(entry: Any, settings: dict[str, Any], between: Callable[[], None]) -> list[torch.Tensor]:
    """Parameters and states after some steps."""
    torch.manual_seed(0)
    model: torch.nn.Module = torch.nn.Sequential(torch.nn.Linear(40, 50), torch.nn.ReLU(), torch.nn.Linear(50, 30))
    data = torch.randn(64, 40)
    if entry.optim_cls is torch.optim.SparseAdam:
        model, data = torch.nn.Embedding(200, 40, sparse=True), torch.randint(0, 200, (64,))
    only_matrices = entry.optim_cls is torch.optim.Muon
    optimizer = entry.optim_cls([p for p in model.parameters() if p.dim() == 2 or not only_matrices], **settings)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(data).pow(2).mean()
        loss.backward()
        between()
        return loss

    for _ in range(4):
        if entry.step_requires_closure:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
        between()
    states = [value for state in optimizer.state.values() for value in state.values()]
    return [value.detach() for value in (*model.parameters(), *states) if isinstance(value, torch.Tensor)]


@mostly_beyond
def test_every_optimizer(late: bool) -> None:
    expected = {name: train(entry, settings, lambda: None) for name, entry, settings in optimizers()}
    with vtensor.enabled(BUDGET * CHUNK, chunk=CHUNK, min_size=1, host="64MiB", policy="lru"):
        empty = emptying()
        wrong = [
            name for name, entry, settings in optimizers() if not same(train(entry, settings, empty), expected[name])
        ]
        assert native.load().validate() == ""
        assert vtensor.memory_stats()["evictions"] > 10 * len(expected)
    assert wrong == []
    assert len(expected) > 150
