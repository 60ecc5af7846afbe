"""Which modules change their buffers when they run, as BatchNorm does.

Covers: the modules that may, inside of layers and outside of all; which of them share buffers; whether they did.
Leaves: when they run (``stops``), in which order that must be (``between``).
"""

from __future__ import annotations

from collections.abc import Container, Iterable

import torch
from torch import nn

__all__ = ["Stateful"]


def _is_statistic(buffer: torch.Tensor) -> bool:
    """Whether it may be one, or a count: compared by what it holds, too, as versions miss writes past autograd."""
    kind = buffer.is_floating_point() or buffer.is_complex() or (buffer.dim() == 0 and not buffer.is_quantized)
    return kind and buffer.layout == torch.strided and not buffer.is_nested and buffer.device.type != "meta"


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether they hold the same; both are plain."""
    one, other = (tensor.detach().reshape(-1).contiguous().view(torch.uint8) for tensor in (one, other))
    return torch.equal(one, other)


class _Before:
    """A buffer as it was."""

    def __init__(self, buffer: torch.Tensor | None) -> None:
        self._buffer = buffer
        self._version = 0 if buffer is None else buffer._version
        self._copy = buffer.detach().clone() if buffer is not None and _is_statistic(buffer) else None

    def is_still(self, now: torch.Tensor | None) -> bool:
        if now is not self._buffer or now is None:
            return now is self._buffer
        return now._version == self._version and (self._copy is None or _same_bits(self._copy, now))


class Stateful:
    """Of a model, as it is now.

    A layer counts as one, with all that is in it; what has layers in it does not count. What lies in a layer and is
    reached from outside, too, counts by itself as well.
    """

    def __init__(self, model: nn.Module, layers: Iterable[nn.Module]) -> None:
        layers = dict.fromkeys(layers)
        self.layers = [layer for layer in layers if any(module._buffers for module in layer.modules())]
        outside = _outside(model, layers)
        self.others = [each for each in outside if each._buffers and layers.keys().isdisjoint(each.modules())]
        """What lies outside of layers, each with its own buffers only."""
        self._parts = {other: [other] for other in self.others}
        self._parts |= {layer: list(layer.modules()) for layer in self.layers}
        self._before = {
            module: {place: _Before(buffer) for place, buffer in self._buffers(module).items()}
            for module in self._parts
        }
        self._first: dict[nn.Module, nn.Module] = {}  # of those that share buffers: another, up to one that is its own
        self._share()

    def all(self) -> list[nn.Module]:
        """Modules that have buffers."""
        return [*self.layers, *self.others]

    def kin(self, module: nn.Module) -> nn.Module:
        """Who stands for all that share buffers with it, one of them by way of another."""
        while (first := self._first.get(module, module)) is not module:
            module = first
        return module

    def changed(self, module: nn.Module) -> bool:
        """Whether its buffers have, by whoever ran it, since this was made; or those of its kin."""
        kin = self.kin(module)
        return any(self._has_changed(each) for each in self._parts if self.kin(each) is kin)

    def _has_changed(self, module: nn.Module) -> bool:
        now = self._buffers(module)
        return not all(before.is_still(now.get(place)) for place, before in self._before[module].items())

    def _share(self) -> None:
        owners: dict[int, nn.Module] = {}
        for module in self._parts:
            for buffer in self._buffers(module).values():
                if buffer is not None:
                    owner = self.kin(owners.setdefault(id(buffer), module))
                    self._first[owner] = self.kin(module)

    def _buffers(self, module: nn.Module) -> dict[tuple[nn.Module, str], torch.Tensor | None]:
        """By module and name. What comes to be only in a forward, as a cache does, is no change."""
        return {(part, name): buffer for part in self._parts[module] for name, buffer in part._buffers.items()}


def _outside(model: nn.Module, layers: Container[nn.Module]) -> Iterable[nn.Module]:
    """Modules that are reached past layers."""
    found: dict[nn.Module, None] = {}

    def visit(module: nn.Module) -> None:
        if module not in found and module not in layers:
            found[module] = None
            for child in module.children():
                visit(child)

    visit(model)
    return found
