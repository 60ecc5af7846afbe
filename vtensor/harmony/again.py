"""A layer's forward once more in its backward, instead of keeping what it leaves behind.

Covers: running layers under ``torch.utils.checkpoint`` while microbatches are woven, buffers as in the first run.
Leaves: making single tensors again, which the engine does for any program (``kernels/engine/remake.h``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ..errors import HarmonyError
from .forwards import Forwards, in_backward
from .stateful import Stateful

__all__ = ["Again", "Buffers"]


class Again:
    """Layers whose forward runs again in backward, until :meth:`remove`."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        self._forwards = Forwards()
        for layer in layers:
            self._forwards.exchange(layer, _twice(layer, layer.forward))

    def remove(self) -> None:
        """The model is as it was."""
        self._forwards.put_back()


def _twice(layer: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    stateful: Stateful | None = None

    def run(*args: Any, **kwargs: Any) -> Any:
        nonlocal stateful
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        if stateful is None:
            stateful = Stateful(layer, [layer])
        elif in_backward() and stateful.changed(layer):
            raise HarmonyError(
                f"a {type(layer).__name__} changes its buffers, and the program's own checkpoints run it again, which "
                "would end early, within recompute=True: leave one of the two out"
            )
        before = Buffers(layer)
        return checkpoint(forward, *args, use_reentrant=False, context_fn=lambda: (before.first(), before), **kwargs)

    return run


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
        self._found = [(place, name, buffer.detach().clone()) for place, name, buffer in found]
        self._versions = [(buffer, buffer._version) for _, _, buffer in found]
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
            or before.dim() == 0
            or place.get(name) is not buffer
            or buffer._version != version
        ]
        self._versions = []

    def __enter__(self) -> None:
        self._now = [place.get(name) for place, name, _ in (*self._found, *self._set)]
        for place, name, before in self._found:
            place[name] = before.clone()
        for place, name, before in self._set:
            place[name] = before

    def __exit__(self, *exception: object) -> None:
        for (place, name, _), now in zip((*self._found, *self._set), self._now, strict=True):
            place[name] = now
