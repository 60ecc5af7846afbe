"""Random numbers of microbatches that take turns.

Covers: the states of the default generators, and a set of them for each microbatch.
Leaves: which microbatch runs (``weave``).
"""

from __future__ import annotations

import random
from typing import Any

import numpy
import torch

__all__ = ["Generators", "generator_state", "set_generator_state"]


def generator_state() -> torch.Tensor:
    """The states of torch's default generators, as bytes."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states.append(torch.cuda.get_rng_state())
    return torch.cat(states)


def set_generator_state(state: torch.Tensor) -> None:
    """Set what :func:`generator_state` returned."""
    size = len(torch.get_rng_state())
    torch.set_rng_state(state[:size].clone())
    if len(state) > size:
        torch.cuda.set_rng_state(state[size:].clone())


class Generators:
    """The states of torch's, Python's and NumPy's default generators while microbatches take turns.

    The first begins with the state there is, as in an ordinary loop. The others begin with seeds drawn from a copy of
    it, as what the one before leaves is not known when they begin; and so does who updates (number `count`). Afterwards
    the generators are where the first one left them, and so go through all their states from step to step.
    """

    def __init__(self, count: int) -> None:
        self._devices = (
            [torch.cuda.current_device()] if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
        )
        first = self._now()
        copy = torch.Generator()
        copy.set_state(first[0])
        drawn = torch.randint(2**32, (count,), generator=copy, device="cpu").tolist()  # whatever the default device is
        self.seeds = drawn[:-1]
        self._states = [first, *map(self._seeded, drawn)]

    def _now(self) -> list[Any]:
        on_devices = map(torch.cuda.get_rng_state, self._devices)
        return [torch.get_rng_state(), random.getstate(), numpy.random.get_state(), *on_devices]

    def _seeded(self, seed: int) -> list[Any]:
        states = [torch.Generator().manual_seed(seed).get_state(), random.Random(seed).getstate()]
        states.append(numpy.random.RandomState(seed).get_state())
        for device in self._devices:
            states.append(torch.Generator(f"cuda:{device}").manual_seed(seed).get_state())
        return states

    def _set(self, states: list[Any]) -> None:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        numpy.random.set_state(states[2])
        for device, state in zip(self._devices, states[3:], strict=True):
            torch.cuda.set_rng_state(state, device)

    def enter(self, index: int) -> None:
        """Microbatch `index` goes on."""
        self._set(self._states[index])

    def leave(self, index: int) -> None:
        """It stops."""
        self._states[index] = self._now()

    def finish(self) -> None:
        """All have ended."""
        self._set(self._states[0])
