"""Several threads, each with a model of its own, under one budget."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import pytest
import torch
from torch import nn

import vtensor
from vtensor import native

from ..identity import PAGE, leaves, same

pytestmark = pytest.mark.alone

THREADS = 4


class Independent(threading.Thread):
    """Trains a small model on data of its own, again and again from the same start, until told to stop."""

    def __init__(self, seed: int, seconds: float) -> None:
        super().__init__()
        self.seed, self.until = seed, time.monotonic() + seconds
        self.results: list[list[Any]] = []
        self.error: BaseException | None = None

    def train(self) -> list[Any]:
        random = torch.Generator().manual_seed(self.seed)
        width = 48 + 16 * self.seed
        net = nn.Sequential(nn.Linear(64, width), nn.Tanh(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 8))
        with torch.no_grad():
            for p in net.parameters():
                p.copy_(torch.randn(p.shape, generator=random) * 0.1)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, foreach=self.seed % 2 == 0)
        for _ in range(4):
            x, y = (torch.randn(64, n, generator=random) for n in (64, 8))
            optimizer.zero_grad()
            nn.functional.mse_loss(net(x), y).backward()
            optimizer.step()
        return list(leaves([list(net.parameters()), optimizer.state_dict()["state"]]))

    def run(self) -> None:
        try:
            while True:
                self.results.append(self.train())
                del self.results[1:-1]
                self.rounds = getattr(self, "rounds", 0) + 1
                if time.monotonic() >= self.until:
                    return
        except BaseException as error:
            self.error = error


def train_together(seconds: float, budget: int, computing: int = 1) -> int:
    torch.set_num_threads(computing)
    expected = [Independent(seed, 0).train() for seed in range(THREADS)]
    with vtensor.enabled(budget, chunk=PAGE, min_size=1, host=1 << 30):
        threads = [Independent(seed, seconds) for seed in range(THREADS)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            time.sleep(0.05)
            assert native.load().validate() == ""
            stats = vtensor.memory_stats()
            assert stats["held_bytes.peak"] <= budget
        for thread, right in zip(threads, expected, strict=True):
            thread.join()
            assert thread.error is None, thread.error
            for got in thread.results:
                assert same(got, right)
        assert stats["evictions"] > 0
        return sum(thread.rounds for thread in threads)


@pytest.mark.parametrize("budget", [400 * PAGE, 60 * PAGE])
def test_threads(budget: int) -> None:
    train_together(4, budget)


def test_threads_that_copy_with_teams_of_their_own() -> None:
    """With more than one thread to compute, those that wait for copies do them, each with its own OpenMP team."""
    train_together(4, 60 * PAGE, computing=max(2, (os.cpu_count() or 2) // 2))


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_threads_for_ten_minutes() -> None:
    rounds = train_together(600, 120 * PAGE)
    print(f"{rounds} trainings by {THREADS} threads in ten minutes, all right")
