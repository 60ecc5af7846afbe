"""A small program that trains step by step, and what its iterations followed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import vtensor
from vtensor import native
from vtensor.planning.current_planner import wait_for_plan

from ..identity import PAGE, same, seeded

__all__ = ["WIDTH", "Net", "Trainer", "gained", "run"]

WIDTH = 48


class Net(nn.Module):
    def __init__(self, depth: int = 6) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(depth))
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, stop: int | None = None) -> torch.Tensor:
        for layer in self.layers[:stop]:
            x = x + self.drop(torch.tanh(layer(x)))
        return x


class Trainer:
    """Trains step by step; `planned` says after each step how many iterations have followed a plan so far."""

    def __init__(self, optimizer: Callable[..., Any] = torch.optim.AdamW, make: Callable[[], nn.Module] = Net) -> None:
        self.net = make()
        self.optimizer = optimizer(self.net.parameters(), lr=1e-2)
        self.losses: list[torch.Tensor] = []
        self.planned: list[int] = []
        self.deviations = 0

    def step(self, rows: int = 64, stop: int | None = None) -> None:
        self.optimizer.zero_grad()
        loss = self.net(torch.randn(rows, WIDTH), stop).square().mean()
        loss.backward()
        self.finish(loss)

    def finish(self, loss: torch.Tensor) -> None:
        self.optimizer.step()
        self.losses.append(loss.detach())
        if vtensor.is_enabled():
            wait_for_plan()
            stats = vtensor.memory_stats()
            self.planned.append(stats["planned_iterations"])
            self.deviations = stats["deviations"]

    def result(self) -> list[Any]:
        return [self.net.state_dict(), self.optimizer.state_dict()["state"], self.losses]


def run(
    program: Callable[[Trainer], None],
    fraction: float = 0.4,
    make: Callable[[], nn.Module] = Net,
    overdraws: bool = False,
    **options: Any,
) -> tuple[list[int], dict[str, Any]]:
    """Train plain and under a budget; the bits must be the same. Returns what was planned when, and the statistics."""
    trainers: list[Trainer] = []

    def whole() -> list[Any]:
        trainers.append(Trainer(make=make))
        program(trainers[-1])
        return trainers[-1].result()

    settings = {"chunk": PAGE, "min_size": 1, "host": 1 << 30, **options}
    expected = seeded(whole)
    with vtensor.enabled(1 << 28, **settings):
        seeded(whole)
        peak = vtensor.memory_stats()["wanted_bytes.peak"]
    with vtensor.enabled(int(peak * fraction), **settings):
        got = seeded(whole)
        stats = vtensor.memory_stats()
        assert native.load().validate() == ""
    assert same(got, expected)
    assert stats["held_bytes.peak"] <= stats["budget_bytes"] + overdraws * stats["overdrawn_bytes.peak"]
    assert stats["drops" if options.get("recompute") == "only" else "evictions"] > 0
    return trainers[-1].planned, stats | {"deviations": trainers[-1].deviations}


def gained(planned: list[int], last: int) -> int:
    return planned[-1] - planned[-1 - last]
