"""A batch in parts, and the random numbers of each.

Covers: cutting nested batches along their first dimension; what a loss must be, and their sum; a generator state for
each microbatch.
Leaves: which microbatch runs (``weave``).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import torch

from ..errors import ConfigError

__all__ = ["Generators", "cut", "generator_state", "scalar", "set_generator_state", "tensors_of", "total"]


def cut(batch: Any, count: int) -> list[Any]:
    """Cut into parts of as many rows each; the first are longer by one where it does not come out even.

    Tensors in lists, tuples, named tuples and mappings are cut along their first dimension; tensors without one, and
    all that are no tensors, go to every part as they are.

    Raises
    ------
    ConfigError
        If there is no tensor to cut, their lengths differ, or there are fewer rows than parts.
    """
    lengths = {len(tensor) for tensor in tensors_of(batch) if tensor.dim()}
    if not lengths:
        raise ConfigError(
            "there is no tensor in this batch to cut into microbatches; pass split=, which returns a list"
        )
    if len(lengths) > 1:
        raise ConfigError(
            f"the tensors of this batch have {', '.join(map(str, sorted(lengths)))} rows: they cannot be cut into "
            "microbatches alike; pass split=, which returns a list of microbatches"
        )
    if (rows := lengths.pop()) < count:
        raise ConfigError(f"a batch of {rows} rows cannot be cut into {count} microbatches; pass microbatches={rows}")
    return [_part(batch, k, count) for k in range(count)]


def tensors_of(value: Any) -> list[torch.Tensor]:
    """Tensors in lists, tuples and mappings, such as the outputs of transformers."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    return [tensor for item in value for tensor in tensors_of(item)] if isinstance(value, list | tuple) else []


def _part(value: Any, index: int, count: int) -> Any:
    if isinstance(value, torch.Tensor):
        if not value.dim():
            return value
        part = value.tensor_split(count)[index]
        return part if part.requires_grad else part.data  # may be overwritten without the others noticing
    if isinstance(value, Mapping):
        return {key: _part(item, index, count) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_part(item, index, count) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(_part(item, index, count) for item in value)
    return value


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
        drawn = torch.randint(2**32, (count,), generator=copy).tolist()
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


def scalar(value: Any) -> torch.Tensor:
    """What a loss returned.

    Raises
    ------
    ConfigError
        If nothing can go backward from it.
    """
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value
    what = f"one of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
    raise ConfigError(f"loss= must return a scalar tensor, and returned {what}")


def total(losses: Sequence[torch.Tensor]) -> torch.Tensor:
    """Their sum, in their order."""
    result = losses[0].clone()
    for value in losses[1:]:
        result += value
    return result
