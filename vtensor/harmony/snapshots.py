"""Which modules change their buffers when they run, as BatchNorm does.

Covers: the modules that may, inside of layers and outside of all; which buffers they share; which of these changed.
Leaves: how that is seen (``memories``), when modules run (``stops``), in which order that must be (``between``).
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable

from torch import nn

from .memories import Memory, UnseenWrites, memories_of

__all__ = ["BufferSnapshot"]


class BufferSnapshot:
    """The buffers of a model as they are now, to see later which of its modules have changed them.

    A layer counts as one, with all that is in it; what has layers in it does not count. What lies in a layer and is
    reached from outside, too, counts by itself as well.

    Parameters
    ----------
    model
        Which has `layers` somewhere.
    unseen
        What is known of writes past autograd, which are looked for in large buffers only where there may be some.
    """

    def __init__(self, model: nn.Module, layers: Iterable[nn.Module], unseen: UnseenWrites | None = None) -> None:
        layers = dict.fromkeys(layers)
        self.layers = [layer for layer in layers if any(module._buffers for module in layer.modules())]
        outside = _outside(model, layers)
        self.others = [each for each in outside if each._buffers and layers.keys().isdisjoint(each.modules())]
        """What lies outside of layers, each with its own buffers only."""
        parts = {other: [other] for other in self.others} | {layer: list(layer.modules()) for layer in self.layers}
        holders: dict[nn.Module, list[nn.Module]] = {}  # of a part: the modules that count and have it
        for module, those in parts.items():
            for part in those:
                holders.setdefault(part, []).append(module)
        self._holders: dict[Memory, dict[nn.Module, None]] = {}
        self._memories: dict[nn.Module, dict[Memory, None]] = {module: {} for module in parts}
        self._modes = {part: part.training for part in holders}
        for buffers in memories_of(holders):
            memory = Memory(buffers, unseen)
            self._holders[memory] = {module: None for part, _ in buffers for module in holders[part]}
            for module in self._holders[memory]:
                self._memories[module][memory] = None

    def all(self) -> list[nn.Module]:
        """Modules that have buffers."""
        return [*self.layers, *self.others]

    def memories(self, module: nn.Module) -> Collection[Memory]:
        """In which its buffers lie."""
        return self._memories[module]

    def holders(self, memory: Memory) -> Collection[nn.Module]:
        """Modules of which buffers lie in it."""
        return self._holders[memory]

    def changed(self) -> list[Memory]:
        """What was written since, by whoever ran."""
        return [memory for memory in self._holders if not memory.is_still()]

    def unseen(self) -> UnseenWrites:
        """What was written since past autograd."""
        written = [memory.places() for memory in self._holders if memory.was_written_unseen()]
        return UnseenWrites(frozenset(place for places in written for place in places), self._modes)


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
