"""The fastest schedule: over packs and microbatches forward, and the same backward.

Covers: which points are tried; a schedule for each way of going parallel.
Leaves: how long one takes (``events``), whether it fits (``profile``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ..errors import LgmError
from ..progress import Progress, silent
from ..records.model import Floats
from .events import Outcome, simulate
from .packing import Packs, every_packing, neighbours, packings
from .profile import Profile
from .tasks import Machine, Mode, Schedule

__all__ = ["Found", "find_schedule", "microbatches"]

_BEST = 8  # of which other forwards are tried
_FEW = 2000  # schedules that there are: then every one is tried
_STEPS = 20  # from the best to one that is like it


@dataclass(frozen=True, slots=True)
class Found:
    """The fastest of those tried."""

    schedule: Schedule
    outcome: Outcome
    tried: int


def find_schedule(
    profile: Profile, machine: Machine, samples: int, mode: Mode = "pipeline", progress: Progress = silent
) -> Found:
    """The fastest simulated.

    First backward, with forward in the same packs and microbatches; then forward, for the best few of those; then what
    is like the best but for one cut, as long as that is faster. Where layers are few, every schedule is tried.

    Raises
    ------
    LgmError
        If one layer with one sample does not fit.
    """
    share = samples // (machine.devices if mode == "data" else 1)
    if share < 1 or (mode == "data" and samples % machine.devices):
        raise LgmError(f"a batch of {samples} cannot be shared evenly by {machine.devices} devices")
    search = _Search(profile, machine, microbatches(share), progress)
    search.backward(samples, mode)
    if not search.tried:
        ways = (profile.bytes_forward, profile.bytes_backward)
        largest = max(way(k, k + 1, 1) for k in range(len(profile)) for way in ways)
        raise LgmError(
            f"no schedule fits: one layer with one sample needs {largest / 2**20:.0f} MiB, and the budget is "
            f"{machine.budget / 2**20:.0f} MiB"
        )
    search.forward()
    if not search.few:
        search.nearby()
    fastest = search.best(1)[0]
    return Found(fastest, search.tried[fastest], len(search.tried))


class _Search:
    def __init__(self, profile: Profile, machine: Machine, sizes: list[int], say: Progress) -> None:
        self.profile, self.machine, self.sizes, self.say = profile, machine, sizes, say
        self.few = 3 ** (len(profile) - 1) * len(sizes) ** 2 <= _FEW
        self.tried: dict[Schedule, Outcome] = {}

    def best(self, count: int) -> list[Schedule]:
        return sorted(self.tried, key=lambda each: self.tried[each].seconds)[:count]

    def backward(self, samples: int, mode: Mode) -> None:
        for k, size in enumerate(self.sizes):
            self.say("backward", k / len(self.sizes) / 2)
            seconds = self.profile.forward(size) + self.profile.backward(size)
            for packs in sorted(self._packings(size, seconds, self.profile.bytes_backward)):
                self._try(Schedule(mode, samples, size, packs[:-1], size, packs))

    def forward(self) -> None:
        best = self.best(len(self.tried) if self.few else _BEST)
        for k, each in enumerate(best):
            self.say("forward", 0.5 + k / len(best) / 4)
            rest = each.backward[-1][0]  # the last pack's forward is a part of its backward
            for size in (size for size in self.sizes if size >= each.backward_samples) if rest else ():
                seconds = self.profile.forward(size)[:rest]
                for packs in sorted({each.backward[:-1], *self._packings(size, seconds, self.profile.bytes_forward)}):
                    self._try(replace(each, forward_samples=size, forward=packs))

    def nearby(self) -> None:
        for _ in range(_STEPS):
            self.say("nearby", 0.75)
            best = self.best(1)[0]
            for packs in neighbours(best.backward):
                self._try(replace(best, backward=packs, forward=packs[:-1]))
                if packs[-1] == best.backward[-1]:
                    self._try(replace(best, backward=packs))
            for packs in neighbours(best.forward) if best.forward else ():
                self._try(replace(best, forward=packs))
            if self.best(1)[0] == best:
                return

    def _try(self, schedule: Schedule) -> None:
        if schedule not in self.tried and self._fits(schedule):
            self.tried[schedule] = simulate(self.profile, schedule, self.machine)

    def _fits(self, schedule: Schedule) -> bool:
        forward, backward, budget = schedule.forward_samples, schedule.backward_samples, self.machine.budget
        return all(self.profile.bytes_forward(*pack, forward) <= budget for pack in schedule.forward) and all(
            self.profile.bytes_backward(*pack, backward) <= budget for pack in schedule.backward
        )

    def _packings(self, samples: int, seconds: Floats, need: Callable[[int, int, int], float]) -> set[Packs]:
        """The layers of `seconds` in packs that fit."""

        def fits(first: int, stop: int) -> bool:
            return need(first, stop, samples) <= self.machine.budget

        n = len(seconds)
        if self.few:
            return every_packing(fits, n)
        memory = np.array([need(k, k + 1, samples) for k in range(n)])
        if memory.max() > self.machine.budget:
            return set()
        alone = np.maximum(memory - self.profile.given(samples)[:n], 0.0)
        return packings((alone, seconds), fits, n)


def microbatches(samples: int) -> list[int]:
    """Sizes of microbatches that are all alike."""
    small = [size for size in range(1, math.isqrt(samples) + 1) if samples % size == 0]
    return sorted({*small, *(samples // size for size in small)})
