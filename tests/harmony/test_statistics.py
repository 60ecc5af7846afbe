"""Buffers that layers change, written past autograd, shared, and under the program's own checkpoints."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import vtensor
from vtensor import HarmonyError


class Moving(nn.Linear):
    """Takes away the mean of what it has seen so far."""

    mean: torch.Tensor
    variance: torch.Tensor

    def __init__(self, mean: torch.Tensor | None = None) -> None:
        super().__init__(8, 8, bias=False)
        self.register_buffer("mean", torch.zeros(8) if mean is None else mean)
        self.register_buffer("variance", torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.data.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)  # VQ codebooks do so: the version stays
        return super().forward(x - self.mean.clone())


class Functional(Moving):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = nn.functional.batch_norm(x, self.mean, self.variance, training=True)
        return nn.Linear.forward(self, normed + self.mean.clone())


class Normed(nn.Sequential):
    def __init__(self, norm: nn.Module | None = None) -> None:
        super().__init__(nn.Linear(8, 8), norm or nn.BatchNorm1d(8), nn.Tanh())


class Checkpointed(nn.Module):
    def __init__(self, layer: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(checkpoint(layer, x, use_reentrant=False))
        return x


class Outside(nn.Module):
    """A layer's norm runs once more, outside of all layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Normed() for _ in range(4))
        self.norm = self.layers[0][1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


def sharing_a_norm() -> nn.Module:
    norm = nn.BatchNorm1d(8)
    return nn.Sequential(*(Normed(norm) for _ in range(4)))


def sharing_a_buffer() -> nn.Module:
    mean = torch.zeros(8)
    return nn.Sequential(*(Moving(mean) for _ in range(4)))


def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).square().mean()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Checkpointed(Moving),
        lambda: Checkpointed(Functional),
        lambda: Checkpointed(Normed),
        sharing_a_norm,
        sharing_a_buffer,
        Outside,
    ],
    ids=["written past autograd", "by a function", "batch norm", "a shared norm", "a shared buffer", "outside too"],
)
def test_statistics_are_those_of_the_ordinary_loop(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = make()
    other = copy.deepcopy(model)
    one, two = (torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, other))
    trainer = vtensor.Harmony(model, one, loss=loss, microbatches=4, packs=2)
    for _ in range(3):
        x = torch.randn(16, 8)
        trainer.step(x)
        for part in x.split(4):
            (loss(other, part) / 4).backward()
        two.step()
        two.zero_grad()
    expected = other.state_dict()
    assert [name for name, value in model.state_dict().items() if not torch.equal(value, expected[name])] == []


def test_the_programs_own_checkpoints_within_ours() -> None:
    """They would end early, before statistics are updated once more."""
    model = Checkpointed(Normed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = vtensor.Harmony(model, optimizer, loss=loss, microbatches=2, packs=2, recompute=True)
    with pytest.raises(HarmonyError, match="own checkpoints run it again"):
        trainer.step(torch.randn(8, 8))
