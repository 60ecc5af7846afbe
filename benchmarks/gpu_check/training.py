"""One model trained one way: how long its steps take, its final state, what it held."""

from __future__ import annotations

import contextlib
import copy
import gc
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch

import vtensor
from vtensor.planning.current_planner import wait_for_plan

from .models import BLOCKS, Make
from .ways import Way

__all__ = ["TIMED", "WARM", "Run", "capped", "clear", "driver_bytes", "made_once"]

WARM, TIMED = 6, 5


class Run:
    """Runs when it is made.

    Raises
    ------
    torch.OutOfMemoryError
        If it does not fit.
    NotSupportedError
        If the way refuses the model.
    """

    def __init__(
        self, name: str, make: Make, device: str, autocast: bool, way: Way | None = None, share: float = 1.0
    ) -> None:
        way = way or Way()
        before_all = _allocated(device)
        model, inputs = make()
        torch.manual_seed(0)
        module = way.prepare(model, BLOCKS[name], share)
        model.to(device).train()
        inputs = {key: value.to(device) for key, value in inputs.items()}
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        self.seconds: list[float] = []
        self.asking: list[float] = []
        """Until all of a step was asked for: where that is most of it, the host is what it takes."""
        self.losses: list[torch.Tensor] = []
        for step in range(WARM + TIMED):
            _wait(device)
            if step == WARM:
                before = _counts()
            begun = time.perf_counter()
            optimizer.zero_grad()
            with torch.autocast(device, torch.bfloat16, enabled=autocast), way.around(model):
                loss = module(**inputs).loss
            loss.backward()
            optimizer.step()
            self.asking.append(time.perf_counter() - begun)
            _wait(device)
            self.seconds.append(time.perf_counter() - begun)
            self.losses.append(loss.detach().cpu())
            wait_for_plan()
        self.host_waits, self.mapped = (now - was for now, was in zip(_counts(), before, strict=True))
        """In the timed steps."""
        self.state = [value.detach().cpu() for value in model.state_dict().values()]
        self.peak = torch.cuda.max_memory_allocated() - before_all if device == "cuda" else 0
        """Beside what was there before: 1.1 GiB once, after a way that ran out of memory."""

    @property
    def step(self) -> float:
        return statistics.median(self.seconds[WARM:])

    def is_same(self, other: Run) -> bool:
        pairs = zip(self.state + self.losses, other.state + other.losses, strict=True)
        return all(torch.equal(a, b) for a, b in pairs)


def made_once(make: Make) -> Make:
    """The same model and batch, without the seconds that filling them with random numbers takes each time."""
    made: list[Any] = []

    def again() -> Any:
        if not made:
            torch.manual_seed(0)
            made.extend(make())
        return copy.deepcopy(made[0]), made[1]

    return again


def _counts() -> tuple[int, int]:
    stats = vtensor.memory_stats() if vtensor.is_enabled() else {"host_waits": 0, "remaps": 0}
    return int(stats["host_waits"]), int(stats["remaps"])


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _allocated(device: str) -> int:
    return torch.cuda.memory_allocated() if device == "cuda" else 0


def clear(device: str) -> None:
    """Gives back what earlier runs left."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def driver_bytes(device: str) -> int:
    """What the driver says is taken on the GPU, by everybody."""
    if device != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info()
    return total - free


@contextlib.contextmanager
def capped(device: str, nbytes: int) -> Iterator[None]:
    """Torch's own allocator may hold no more than so many bytes beside what it holds."""
    if device != "cuda":
        yield
        return
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min((torch.cuda.memory_reserved() + nbytes) / total, 1.0))
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
