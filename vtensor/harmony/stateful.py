"""Which modules change their buffers when they run, as BatchNorm does.

Covers: the modules that may, inside of layers and outside of all; whether they did.
Leaves: when they run (``stops``), in which order that must be (``between``).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

__all__ = ["Stateful"]


class Stateful:
    """Of a model, as it is now.

    A layer counts as one, with all that is in it; what has layers in it does not count.
    """

    def __init__(self, model: nn.Module, layers: Iterable[nn.Module]) -> None:
        layers = list(layers)
        inside = {module for layer in layers for module in layer.modules()}
        outside = [module for module in model.modules() if module not in inside]
        self.layers = [layer for layer in layers if any(module._buffers for module in layer.modules())]
        self.others = [module for module in outside if module._buffers and inside.isdisjoint(module.modules())]
        """What lies outside of layers, each with its own buffers only."""
        self._parts = {layer: list(layer.modules()) for layer in self.layers} | {
            other: [other] for other in self.others
        }
        self._before = {module: self._buffers(module) for module in self._parts}

    def all(self) -> list[nn.Module]:
        """Modules that have buffers."""
        return [*self.layers, *self.others]

    def changed(self, module: nn.Module) -> bool:
        """Whether its buffers have, by whoever ran it, since this was made."""
        now = self._buffers(module)
        for place, (buffer, version) in self._before[module].items():
            other, newer = now.get(place, (None, -1))
            if other is not buffer or newer != version:
                return True
        return False

    def _buffers(self, module: nn.Module) -> dict[tuple[nn.Module, str], tuple[torch.Tensor | None, int]]:
        """By module and name, with versions. What comes to be only in a forward, as a cache does, is no change."""
        found = [(part, name, buffer) for part in self._parts[module] for name, buffer in part._buffers.items()]
        return {(part, name): (buffer, 0 if buffer is None else buffer._version) for part, name, buffer in found}
