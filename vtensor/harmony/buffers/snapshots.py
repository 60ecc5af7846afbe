"""Which modules change their buffers when they run, as BatchNorm does.

Covers: the modules that may, inside of layers and outside of all; which buffers they share; which of these changed.
Leaves: how that is seen (``memories``), when modules run (``stops``), in which order that must be (``between``).
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable

from torch import nn

from .memories import Constants, Memory, memories_of

__all__ = ["BufferSnapshot"]


class BufferSnapshot:
    """The buffers of a model as they are now, to see later which of its modules have changed them.

    A layer counts as one, with all that is in it. What has layers in it runs while these take turns: it is a container,
    with its own buffers only. What lies in a layer and is reached from outside, too, counts by itself as well.

    Parameters
    ----------
    model
        Which has `layers` somewhere.
    constants
        Large buffers in which writes past autograd are not looked for.
    """

    def __init__(self, model: nn.Module, layers: Iterable[nn.Module], constants: Constants | None = None) -> None:
        layers = dict.fromkeys(layers)
        self.layers = [layer for layer in layers if any(module._buffers for module in layer.modules())]
        self.others: list[nn.Module] = []
        """What lies outside of layers, each with its own buffers only."""
        self.containers: dict[nn.Module, list[nn.Module]] = {}
        """What has layers in it, and which."""
        for each in _outside(model, layers):
            inner = [module for module in each.modules() if module in layers]
            if each._buffers and inner:
                self.containers[each] = inner
            elif each._buffers:
                self.others.append(each)
        parts = {other: [other] for other in [*self.containers, *self.others]}
        parts |= {layer: list(layer.modules()) for layer in self.layers}
        holders: dict[nn.Module, list[nn.Module]] = {}  # of a part: the modules that count and have it
        for module, those in parts.items():
            for part in those:
                holders.setdefault(part, []).append(module)
        self._holders: dict[Memory, dict[nn.Module, None]] = {}
        self._memories: dict[nn.Module, dict[Memory, None]] = {module: {} for module in parts}
        self._modes = {part: part.training for part in holders}
        for buffers in memories_of(holders):
            memory = Memory(buffers, constants)
            self._holders[memory] = {module: None for part, _ in buffers for module in holders[part]}
            for module in self._holders[memory]:
                self._memories[module][memory] = None

    def all(self) -> list[nn.Module]:
        """Modules that have buffers, and no layers in them."""
        return [*self.layers, *self.others]

    def parts(self) -> list[nn.Module]:
        """These and those in them, by themselves."""
        return list(self._modes)

    def memories(self, module: nn.Module) -> Collection[Memory]:
        """In which its buffers lie; none, if it has none."""
        return self._memories.get(module, {})

    def holders(self, memory: Memory) -> Collection[nn.Module]:
        """Modules of which buffers lie in it."""
        return self._holders[memory]

    def changed(self) -> list[Memory]:
        """What was written since, by whoever ran."""
        return [memory for memory in self._holders if not memory.is_still()]

    def constants(self, ran: Container[nn.Module]) -> Constants:
        """What is as it was although the modules that have it `ran`."""
        still = [memory.places() for memory in self._holders if memory.is_still()]
        shown = [places for places in still if all(module in ran for module, _ in places)]
        return Constants(frozenset(place for places in shown for place in places), self._modes)


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
