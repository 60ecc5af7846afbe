"""Where microbatches change places: hooks at the first and the last layer of each pack.

Covers: stopping before a pack's forward and before its backward; finding out in which order layers run.
Leaves: whose turn it is (``weave``), which layers make a pack (``packs``).

With p packs, numbered as they run, a microbatch stops with rank k before the forward of pack k, and with rank 2p - k
before the backward of pack k. The first pack's forward and the last one's backward need no stop: nothing else would
come between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from .weave import Weave

__all__ = ["Order", "Stops"]


def tensors_of(value: Any) -> list[torch.Tensor]:
    """Tensors in lists, tuples, mappings and the outputs of transformers."""
    if isinstance(value, torch.Tensor):
        return [value]
    if hasattr(value, "values") and callable(value.values):
        value = list(value.values())
    return [tensor for item in value for tensor in tensors_of(item)] if isinstance(value, list | tuple) else []


class Stops:
    """Hooks on the layers of packs while microbatches are woven."""

    def __init__(self, packs: Sequence[Sequence[nn.Module]], weave: Weave) -> None:
        self._weave = weave
        self._handles: list[Any] = []
        last = len(packs) - 1
        for k, layers in enumerate(packs):
            if k > 0:
                self._handles.append(layers[0].register_forward_pre_hook(self._before(k)))
            if k < last:
                self._handles.append(layers[-1].register_forward_hook(self._after(2 * len(packs) - k)))

    def remove(self) -> None:
        """The model is as it was."""
        for handle in self._handles:
            handle.remove()

    def _before(self, rank: int) -> Callable[..., None]:
        def stop(_module: nn.Module, _args: Any) -> None:
            if self._weave.current() is not None and torch.is_grad_enabled():
                self._weave.stop(rank)

        return stop

    def _after(self, rank: int) -> Callable[..., None]:
        def stop(_gradient: torch.Tensor) -> None:
            if self._weave.current() is not None:
                self._weave.stop(rank)

        def watch(_module: nn.Module, _args: Any, output: Any) -> None:
            if self._weave.current() is not None:
                for tensor in tensors_of(output):
                    if tensor.requires_grad:
                        tensor.register_hook(stop)  # type: ignore[no-untyped-call]

        return watch


class Order:
    """In which order layers run, each how often, and what each leaves behind; found out by watching one microbatch."""

    def __init__(self, layers: Sequence[nn.Module], weave: Weave) -> None:
        self._weave = weave
        self.ran: list[nn.Module] = []
        self._handles = [layer.register_forward_pre_hook(self._note) for layer in layers]

    def _note(self, module: nn.Module, _args: Any) -> None:
        if self._weave.current() == 0 and torch.is_grad_enabled():
            self.ran.append(module)

    def remove(self) -> None:
        """The model is as it was."""
        for handle in self._handles:
            handle.remove()

    def once(self) -> list[nn.Module]:
        """Layers that ran once, in that order."""
        return [layer for layer in dict.fromkeys(self.ran) if self.ran.count(layer) == 1]
