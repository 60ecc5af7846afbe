"""What a forward found beside parameters, put back for a run that shall change nothing.

Covers: copies of buffers that share memory where they do, tensors that are plain attributes.
Leaves: which forwards run again (``again``), which modules change their buffers (``stateful``).
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Hashable, Iterator, Sequence

import torch
from torch import nn

from ..hooks.doors import storage_of
from .stateful import memories_of, span_of, version_of

__all__ = ["Buffers"]

_SMALL = 1 << 16  # bytes of what is kept, whatever it holds
_ALIGN = 16  # of elements, at most


class Buffers:
    """What a layer's forward found beside its parameters.

    Running statistics are updated once, and not by repetitions; what hooks set before each forward
    (``torch.nn.utils.spectral_norm``) is another in each microbatch.

    As a context: copies of the buffers are in their places, which what runs meanwhile may change, and the tensors that
    were attributes. It may be entered again.
    """

    def __init__(self, layer: nn.Module) -> None:
        found = [
            (module._buffers, name, buffer)
            for module in layer.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        copies = _copied([buffer for _, _, buffer in found])
        self._found = [(place, name, copy) for (place, name, _), copy in zip(found, copies, strict=True)]
        self._versions = [(buffer, version_of(buffer)) for _, _, buffer in found]
        self._set = [
            (vars(module), name, value)
            for module in layer.modules()
            for name, value in vars(module).items()
            if isinstance(value, torch.Tensor)
        ]
        self._now: list[torch.Tensor | None] = []

    @contextlib.contextmanager
    def first(self) -> Iterator[None]:
        """Around the first run. Afterwards no copies are left of what is large, and which it did not change: masks."""
        yield
        self._found = [
            (place, name, before)
            for (place, name, before), (buffer, version) in zip(self._found, self._versions, strict=True)
            if before.is_floating_point()
            or before.is_complex()
            or _storage_size(before) <= _SMALL
            or place.get(name) is not buffer
            or version_of(buffer) != version
        ]
        self._versions = []

    def __enter__(self) -> None:
        self._now = [place.get(name) for place, name, _ in (*self._found, *self._set)]
        copies = _copied([before for _, _, before in self._found])
        for (place, name, _), copy in zip(self._found, copies, strict=True):
            place[name] = copy
        for place, name, before in self._set:
            place[name] = before

    def __exit__(self, *exception: object) -> None:
        for (place, name, _), now in zip((*self._found, *self._set), self._now, strict=True):
            place[name] = now


def _copied(buffers: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """One for each. Where several are one tensor, or views of one memory, so are their copies."""
    memories = memories_of(buffers)
    sharing: dict[Hashable, dict[int, torch.Tensor]] = {}
    for buffer in buffers:
        sharing.setdefault(memories[id(buffer)], {})[id(buffer)] = buffer
    made: dict[int, torch.Tensor] = {}
    with torch.no_grad():
        for views in sharing.values():
            if len(views) == 1:
                ((key, buffer),) = views.items()
                made[key] = buffer.detach().clone()
            else:
                made |= _views_copied(views)
    return [made[id(buffer)] for buffer in buffers]


def _views_copied(views: dict[int, torch.Tensor]) -> dict[int, torch.Tensor]:
    any_of_them, spans = next(iter(views.values())), [span_of(view) for view in views.values()]
    first, last = min(begin for begin, _ in spans) // _ALIGN * _ALIGN, max(end for _, end in spans)
    whole = torch.empty(0, dtype=torch.uint8, device=any_of_them.device).set_(storage_of(any_of_them))
    memory = storage_of(whole[first:last].clone())
    return {
        key: torch.empty(0, dtype=view.dtype, device=view.device).set_(
            memory, view.storage_offset() - first // view.element_size(), view.size(), view.stride()
        )
        for key, view in views.items()
    }


def _storage_size(tensor: torch.Tensor) -> int:
    """Bytes; more than any where there is no such thing."""
    return storage_of(tensor).nbytes() if tensor.layout == torch.strided else sys.maxsize
