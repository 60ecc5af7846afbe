"""A layer's forward once more in its backward, instead of keeping what it leaves behind.

Covers: running layers under ``torch.utils.checkpoint`` while microbatches are woven, buffers as in the first run.
Leaves: making single tensors again, which the engine does for any program (``kernels/engine/remake.h``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from .forwards import Forwards

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
    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        before = Buffers(layer)
        return checkpoint(
            forward, *args, use_reentrant=False, context_fn=lambda: (contextlib.nullcontext(), before), **kwargs
        )

    return run


class Buffers:
    """A layer's buffers before it ran: running statistics are updated once, and not by repetitions.

    As a context: other tensors are in their places, which what runs meanwhile may change. It may be entered again.
    """

    def __init__(self, layer: nn.Module) -> None:
        self._found = [
            (module, name, buffer.detach().clone())
            for module in layer.modules()
            if module.training
            for name, buffer in module._buffers.items()
            if buffer is not None and (buffer.is_floating_point() or buffer.dim() == 0)
        ]
        self._now: list[torch.Tensor | None] = []

    def __enter__(self) -> None:
        self._now = [module._buffers[name] for module, name, _ in self._found]
        for module, name, before in self._found:
            module._buffers[name] = before.clone()

    def __exit__(self, *exception: object) -> None:
        for (module, name, _), now in zip(self._found, self._now, strict=True):
            module._buffers[name] = now
