"""Which modules change their buffers when they run, as BatchNorm does.

Covers: the modules that may, inside of layers and outside of all; which buffers they share; which of these changed.
Leaves: when modules run (``stops``), in which order that must be (``between``), copies to run with (``buffers``).
"""

from __future__ import annotations

from collections.abc import Collection, Container, Hashable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from ..hooks.doors import storage_of

__all__ = ["Stateful", "Unseen", "memories_of", "span_of", "version_of"]

Place = tuple[nn.Module, str]
"""Of a buffer: its module and its name there."""

# Bytes of what is always compared by what it holds, too, as versions miss writes past autograd (`.data`, NumPy). The
# statistics of a thousand channels are of four thousand bytes; tables and masks are large, and constant.
_SMALL = 1 << 19


def _past_the_program() -> Any:
    """A context in which no mode of the program's, such as a checkpoint that chooses what it saves, sees operations."""
    return torch._C._DisableTorchDispatch()


def _is_plain(buffer: torch.Tensor) -> bool:
    """Whether it is nothing but its memory."""
    return (
        type(buffer) in (torch.Tensor, nn.Parameter)
        and buffer.layout == torch.strided
        and buffer.device.type != "meta"
        and not (buffer.is_nested or buffer.is_quantized or buffer.is_conj() or buffer.is_neg())
    )


def span_of(buffer: torch.Tensor) -> tuple[int, int]:
    """From which byte of its storage to which it may have elements."""
    first = int(buffer.storage_offset()) * buffer.element_size()
    if buffer.numel() == 0:
        return first, first
    reach = sum((size - 1) * int(stride) for size, stride in zip(buffer.shape, buffer.stride(), strict=True))
    return first, first + (reach + 1) * buffer.element_size()


def memories_of(buffers: Iterable[torch.Tensor]) -> dict[int, Hashable]:
    """By the buffers' ids, what those have in common that share memory; as long as they live. One may come again."""
    found: dict[int, Hashable] = {}
    by_storage: dict[int, list[torch.Tensor]] = {}
    for buffer in buffers:
        if _is_plain(buffer):
            by_storage.setdefault(storage_of(buffer)._cdata, []).append(buffer)
        else:
            found[id(buffer)] = id(buffer)
    for storage, views in by_storage.items():
        begin = end = 0
        for view in sorted(views, key=span_of):
            first, last = span_of(view)
            if first >= end:
                begin = first
            end = max(end, last)
            found[id(view)] = (storage, begin)
    return found


def version_of(buffer: torch.Tensor) -> int:
    """What autograd counts of writes; 0 where it counts none."""
    has_none = not nn.parameter.is_lazy(buffer) and buffer.is_inference()
    return 0 if has_none else buffer._version


class Unseen:
    """Which buffers the first microbatch of all wrote past autograd, and in which mode modules were."""

    def __init__(self, written: Collection[Place], modes: Mapping[nn.Module, bool]) -> None:
        self._written, self._modes = written, modes

    def may_be(self, place: Place) -> bool:
        """Whether the buffer there was, or may be as its module is in the other mode now."""
        module, _ = place
        return place in self._written or self._modes.get(module) is not module.training


class _Before:
    """A buffer as it was."""

    def __init__(self, buffer: torch.Tensor | None, by_content: bool) -> None:
        self._buffer, self._copy = buffer, None
        self._version = 0 if buffer is None else version_of(buffer)
        if buffer is not None and _is_plain(buffer) and (by_content or buffer.nbytes <= _SMALL):
            with _past_the_program(), torch.no_grad():
                self._copy = buffer.detach().clone()

    def is_still(self, now: torch.Tensor | None) -> bool:
        return self._is_known_to_be(now) and not self.was_written_unseen(now)

    def was_written_unseen(self, now: torch.Tensor | None) -> bool:
        """Past autograd, by which nothing else tells that it has changed."""
        if self._copy is None or now is None or not self._is_known_to_be(now):
            return False
        with _past_the_program(), torch.no_grad():
            one, other = (each.detach().reshape(-1).contiguous().view(torch.uint8) for each in (self._copy, now))
            return not torch.equal(one, other)

    def _is_known_to_be(self, now: torch.Tensor | None) -> bool:
        return now is self._buffer and (now is None or version_of(now) == self._version)


class Stateful:
    """Of a model, as it is now.

    A layer counts as one, with all that is in it; what has layers in it does not count. What lies in a layer and is
    reached from outside, too, counts by itself as well.

    Parameters
    ----------
    model
        Which has `layers` somewhere.
    unseen
        Which large buffers are copied, too, to be compared by what they hold; None: all.
    """

    def __init__(self, model: nn.Module, layers: Iterable[nn.Module], unseen: Unseen | None = None) -> None:
        layers = dict.fromkeys(layers)
        self.layers = [layer for layer in layers if any(module._buffers for module in layer.modules())]
        outside = _outside(model, layers)
        self.others = [each for each in outside if each._buffers and layers.keys().isdisjoint(each.modules())]
        """What lies outside of layers, each with its own buffers only."""
        parts = {other: [other] for other in self.others} | {layer: list(layer.modules()) for layer in self.layers}
        self._places: dict[Hashable, dict[Place, None]] = {}  # by memory
        self._holders: dict[Hashable, dict[nn.Module, None]] = {}
        self._memories: dict[nn.Module, dict[Hashable, None]] = {module: {} for module in parts}
        buffers = {
            (part, name): buffer for each in parts.values() for part in each for name, buffer in part._buffers.items()
        }
        memories = memories_of(buffer for buffer in buffers.values() if buffer is not None)
        self._before = {
            place: _Before(buffer, unseen is None or unseen.may_be(place)) for place, buffer in buffers.items()
        }
        for module in parts:
            for part in parts[module]:
                for name in part._buffers:
                    place = (part, name)
                    memory = memories.get(id(buffers[place]), place)
                    self._places.setdefault(memory, {})[place] = None
                    self._holders.setdefault(memory, {})[module] = None
                    self._memories[module][memory] = None

    def all(self) -> list[nn.Module]:
        """Modules that have buffers."""
        return [*self.layers, *self.others]

    def memories(self, module: nn.Module) -> Collection[Hashable]:
        """In which its buffers lie."""
        return self._memories[module]

    def holders(self, memory: Hashable) -> Collection[nn.Module]:
        """Modules of which buffers lie in it."""
        return self._holders[memory]

    def has_changed(self, memory: Hashable) -> bool:
        """What lies in it has, by whoever ran, since this was made."""
        return not all(self._before[place].is_still(_now(place)) for place in self._places[memory])

    def changed(self) -> list[Hashable]:
        """All memories of which that is so."""
        return [memory for memory in self._places if self.has_changed(memory)]

    def unseen(self) -> Unseen:
        """What was written since past autograd."""
        written = frozenset(place for place, before in self._before.items() if before.was_written_unseen(_now(place)))
        return Unseen(written, {module: module.training for module, _ in self._before})


def _now(place: Place) -> torch.Tensor | None:
    module, name = place
    return module._buffers.get(name)


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
