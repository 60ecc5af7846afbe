"""Microbatches that do not go the same way: random programs, beside the ordinary loop.

Each leaves layers out, runs some again, throws results away, uses what lies outside of packs or not, and may have a
term of its loss that reaches all parameters at once; with running statistics also runs some without gradients, under
the program's own checkpoints, or asks for a gradient within its loss.
"""

from __future__ import annotations

import random
import re

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from vtensor.errors import HarmonyError
from vtensor.harmony.updates import Updates

from .models import threads_left
from .test_programs import compare

LAYERS = 5


class Wild(nn.Module):
    """Does with each microbatch, which has its number in its first entry, what was drawn for it."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        self.first, self.last = nn.Linear(8, 8, bias=False), nn.Linear(8, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(LAYERS))
        if draw.random() < 0.3:  # in a pack, and outside of all
            self.layers[draw.randrange(LAYERS)].weight = self.first.weight
        if draw.random() < 0.2:  # in two packs
            self.layers[0].weight = self.layers[-1].weight
        self.ways = [self._way(draw) for _ in range(4)]
        self.ways[0] = ([(k, "use") for k in range(LAYERS)], True, self.ways[0][2])  # by it packs are put in order

    @staticmethod
    def _way(draw: random.Random) -> tuple[list[tuple[int, str]], bool, bool]:
        calls = [(k, draw.choice(["use", "use", "use", "leave out", "throw away"])) for k in range(LAYERS)]
        if draw.random() < 0.3:
            calls.insert(draw.randrange(LAYERS), (draw.randrange(LAYERS), "use"))  # again, or before its time
        return calls, draw.random() < 0.8, draw.random() < 0.3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        calls, ends_with_last, regularized = self.ways[int(x[0, 0])]
        x = torch.tanh(self.first(x))
        for k, what in calls:
            if what != "leave out":
                y = torch.tanh(self.layers[k](x))
                x = y if what == "use" else x
        x = self.last(x) if ends_with_last else x
        if regularized:
            x = x + 0.01 * torch.stack([p.square().sum() for p in self.parameters()]).sum()
        return x


class Norm(nn.Linear):
    """With a running mean."""

    def __init__(self) -> None:
        super().__init__(8, 8, bias=False)
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return super().forward(x - self.mean)


class NormByHook(nn.Linear):
    """The same, kept by a hook."""

    def __init__(self) -> None:
        super().__init__(8, 8, bias=False)
        self.register_buffer("mean", torch.zeros(8))
        self.register_forward_pre_hook(self._update)

    @staticmethod
    def _update(layer: nn.Module, args: tuple[torch.Tensor]) -> torch.Tensor:
        with torch.no_grad():
            layer.mean.mul_(0.9).add_(args[0].mean(0), alpha=0.1)  # type: ignore[union-attr, operator]
        return args[0] - layer.mean  # type: ignore[operator]


LAYER_KINDS = [Norm, NormByHook, nn.Linear, nn.Linear]


class Running(nn.Module):
    """As `Wild`, with layers of which some keep running statistics; `alike`: all microbatches do as the first."""

    def __init__(self, seed: int, alike: bool) -> None:
        super().__init__()
        draw = random.Random(seed)
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        kinds = [draw.choice(LAYER_KINDS) for _ in range(LAYERS)]
        self.layers = nn.ModuleList(kind(8, 8, bias=False) if kind is nn.Linear else kind() for kind in kinds)
        self.ways = [self._way(draw) for _ in range(4)]
        if alike:
            self.ways = self.ways[:1] * 4

    @staticmethod
    def _way(draw: random.Random) -> tuple[list[tuple[int, str]], bool]:
        ways = ["use"] * 4 + ["leave out", "without gradients", "checkpoint", "reentrant"]
        calls = [(k, draw.choice(ways)) for k in range(LAYERS)]
        if draw.random() < 0.2:
            calls.insert(draw.randrange(LAYERS), (draw.randrange(LAYERS), "use"))  # again, or before its time
        return calls, draw.random() < 0.2 and all(what != "reentrant" for _, what in calls)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        calls, penalized = self.ways[int(x[0, 0])]
        x = torch.tanh(self.first(x))
        for k, what in calls:
            layer = self.layers[k]
            if what in {"checkpoint", "reentrant"}:
                x = torch.tanh(checkpoint(layer, x, use_reentrant=what == "reentrant"))
            elif what != "leave out":
                with torch.set_grad_enabled(what != "without gradients"):
                    y = torch.tanh(layer(x))
                x = y if what == "use" else x + y
        if penalized:
            (gradient,) = torch.autograd.grad(x.sum(), self.first.weight, create_graph=True)
            x = x + 0.01 * gradient.square().sum()
        return self.last(x)


def numbered() -> torch.Tensor:
    batch = torch.randn(16, 8)
    batch[:, 0] = torch.arange(16) // 4
    return batch


@pytest.mark.parametrize(
    "seed", [*range(25), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(25, 1000))]
)
def test_the_bits_of_the_ordinary_loop(seed: int) -> None:
    torch.manual_seed(seed)
    compare(Wild(seed), steps=2, batch=numbered, packs=2 + seed % 4)
    assert not threads_left()


@pytest.mark.parametrize(
    "seed", [*range(25), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(25, 1000))]
)
@pytest.mark.parametrize("alike", [True, False])
def test_running_statistics_are_those_of_the_ordinary_loop_or_it_is_said(seed: int, alike: bool) -> None:
    torch.manual_seed(seed)
    model = Running(seed, alike)
    try:
        compare(model, steps=2, batch=numbered, packs=2 + seed % 4)
    except HarmonyError as error:
        assert not alike or "two gradients" in str(error)  # else the first microbatch has shown what takes no turns
        assert re.search(r"ran in microbatch \d when a later one|got two gradients from one microbatch", str(error))
    except RuntimeError as error:  # torch says it first, where a weight was needed for the second of two gradients
        assert not alike and "modified by an inplace operation" in str(error)
        assert any("reentrant" in dict(calls).values() and len(calls) > LAYERS for calls, _ in model.ways)
    assert not threads_left()


def test_gradients_out_of_order_are_said() -> None:
    """Should all that keeps them in order fail."""
    for before, order in (torch.ones(2), [1]), (None, [1, 2]):  # the first two of all may come in any order
        weight, microbatches = nn.Parameter(torch.ones(2)), iter([*order, 0])
        weight.grad = before
        updates = Updates(torch.optim.SGD([weight], lr=0.1), {weight: "weight"}, 3, lambda n=microbatches: next(n))
        for _ in order:
            (2 * weight).sum().backward()
        with pytest.raises(HarmonyError, match="weight got the gradient of microbatch 0 after that of a later one"):
            (2 * weight).sum().backward()
        updates.remove()
