"""Microbatches that do not go the same way: random programs, beside the ordinary loop.

Each leaves layers out, runs some again, throws results away, uses what lies outside of packs or not, and may have a
term of its loss that reaches all parameters at once.
"""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

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
