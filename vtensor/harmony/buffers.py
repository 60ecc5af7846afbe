"""What a forward found beside parameters, put back for a run that shall change nothing.

Covers: copies of buffers that share memory where they do, tensors that are plain attributes.
Leaves: which forwards run again (``again``), what is written (``memories``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from .memories import Memory, UnseenWrites, memories_of

__all__ = ["BufferCopies"]

_ABSENT = object()


class BufferCopies:
    """What a layer's forward found beside its parameters.

    Running statistics are updated once, and not by repetitions; what hooks set before each forward
    (``torch.nn.utils.spectral_norm``) is another in each microbatch.

    As a context: copies of the buffers are in their places, which what runs meanwhile may change, and the tensors that
    were attributes. It may be entered again.
    """

    def __init__(self, layer: nn.Module, unseen: UnseenWrites | None = None) -> None:
        self._memories = [Memory(buffers, unseen, copied=True) for buffers in memories_of(layer.modules())]
        self._set = [
            (vars(module), name, value)
            for module in layer.modules()
            for name, value in vars(module).items()
            if isinstance(value, torch.Tensor)
        ]
        self._exchanged: list[tuple[dict[str, Any], str, Any]] = []

    @contextlib.contextmanager
    def first(self) -> Iterator[None]:
        """Around the first run. Afterwards no copies are left of what it did not change: masks, tables."""
        yield
        self._memories = [memory for memory in self._memories if not (memory.is_plain and memory.is_still())]

    def __enter__(self) -> None:
        for memory in self._memories:
            for (module, name), copy in memory.copies().items():
                self._exchange(module._buffers, name, copy)
        for place, name, before in self._set:
            self._exchange(place, name, before)

    def _exchange(self, place: dict[str, Any], name: str, value: torch.Tensor | None) -> None:
        self._exchanged.append((place, name, place.get(name, _ABSENT)))
        place[name] = value

    def __exit__(self, *exception: object) -> None:
        while self._exchanged:
            place, name, before = self._exchanged.pop()
            if before is _ABSENT:
                place.pop(name, None)
            else:
                place[name] = before
