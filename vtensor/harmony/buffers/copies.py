"""What a forward found beside parameters, put back for a run that shall change nothing.

Covers: copies of buffers that share memory where they do; plain attributes: tensors, numbers, flags, strings.
Leaves: which forwards run again (``again``), what is written (``memories``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from .memories import Constants, Memory, memories_of, room_of

__all__ = ["BufferCopies"]

_ABSENT = object()


class BufferCopies:
    """What a layer's forward found beside its parameters.

    Running statistics are updated once, and not by repetitions; what hooks set before each forward
    (``torch.nn.utils.spectral_norm``) is another in each microbatch.

    As a context: copies of the buffers are in their places, which what runs meanwhile may change, and so are the
    tensors, numbers, flags and strings that were attributes; of tensors without a graph copies. It may be entered
    again.
    """

    def __init__(self, layer: nn.Module, constants: Constants | None = None) -> None:
        memories = memories_of(layer.modules(), attributes=True)
        self._memories = [Memory(buffers, constants, copied=True) for buffers in memories]
        self._places = [vars(module) for module in layer.modules()]
        self._found = [{name: value for name, value in place.items() if _is_kept(value)} for place in self._places]
        self._exchanged: list[tuple[dict[str, Any], str, Any]] = []

    @contextlib.contextmanager
    def first(self) -> Iterator[None]:
        """Around the first run. Afterwards no copies are left of what it did not change: masks, tables."""
        names = [frozenset(place) for place in self._places]
        yield
        self._memories = [memory for memory in self._memories if not (memory.is_plain and memory.is_still())]
        for place, before, found in zip(self._places, names, self._found, strict=True):
            found.update((name, _ABSENT) for name, value in place.items() if name not in before and _is_kept(value))

    def __enter__(self) -> None:
        try:
            for place, found in zip(self._places, self._found, strict=True):
                for name, value in found.items():
                    self._exchange(place, name, value)
            for memory in self._memories:  # in the place of what was written, or is another by now
                for (module, name), copy in memory.copies().items():
                    self._exchange(room_of((module, name)), name, copy)
        except BaseException:
            self.__exit__()
            raise

    def _exchange(self, place: dict[str, Any], name: str, value: Any) -> None:
        self._exchanged.append((place, name, place.get(name, _ABSENT)))
        _set(place, name, value)

    def __exit__(self, *exception: object) -> None:
        while self._exchanged:
            _set(*self._exchanged.pop())


def _is_kept(attribute: Any) -> bool:
    return attribute is None or isinstance(attribute, torch.Tensor | int | float | str)


def _set(place: dict[str, Any], name: str, value: Any) -> None:
    if value is _ABSENT:
        place.pop(name, None)
    else:
        place[name] = value
