"""In which order layers run, as the first microbatch of all shows it.

Covers: which layers can take turns; buffers that are constant, and that are written unseen; weights that are written.
Leaves: packs of them (``packing``), layers that turn out to run otherwise later (``between``).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import nn

from ..buffers.memories import Constants, Place
from ..buffers.snapshots import BufferSnapshot
from ..buffers.weights import WeightSums
from ..buffers.writes import UnseenWrites
from ..forwards import in_backward, untraced

__all__ = ["LayerOrder"]


class LayerOrder:
    """In which order layers run, each how often, while `watched` says yes: for one microbatch.

    Calls count while `counted` says yes; others may change buffers all the same.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Sequence[nn.Module],
        watched: Callable[[], bool] = lambda: True,
        counted: Callable[[], bool] = lambda: True,
    ) -> None:
        self._layers, self._watched, self._counted = list(layers), watched, counted
        self._snapshot = BufferSnapshot(model, layers)
        self._ran: list[nn.Module] = []  # all calls, those of the user's checkpoints in backward among them
        self._count: list[nn.Module] = []  # those that count
        self._parts: set[nn.Module] = set()  # that ran, by themselves
        self._writes, self._weights = UnseenWrites(self._snapshot), WeightSums(model)
        self._handles: list[Any] = []
        note, note_end, note_part = untraced(self._note), untraced(self._note_end), untraced(self._note_part)
        for module in dict.fromkeys([*self._layers, *self._snapshot.others]):
            # What hooks of others write, before it runs or after, is its own.
            self._handles.append(module.register_forward_pre_hook(note, prepend=True))
            self._handles.append(module.register_forward_hook(note_end))
        self._handles += [part.register_forward_pre_hook(note_part) for part in self._snapshot.parts()]

    def _note(self, module: nn.Module, _args: Any) -> None:
        if self._watched():
            self._ran.append(module)
            self._writes.enters(module)
            if self._counted() and module in self._layers and not in_backward():
                self._count.append(module)

    def _note_end(self, module: nn.Module, *_: Any) -> None:
        if self._watched():
            self._writes.leaves(module)

    def _note_part(self, part: nn.Module, _args: Any) -> None:
        if self._watched():
            self._parts.add(part)

    def remove(self) -> None:
        """The model is as it was."""
        for handle in self._handles:
            handle.remove()

    @property
    def ran(self) -> bool:
        """Whether any of the layers did."""
        return bool(self._count)

    def unseen(self) -> dict[Place, list[nn.Module]]:
        """By buffers that were written while what has them did not run, or had layers running in it: the layers that
        may run meanwhile.
        """
        found: dict[Place, list[nn.Module]] = {}
        for memory in self._writes.found():
            holders = self._snapshot.holders(memory)
            contained = [self._snapshot.containers.get(holder, self._layers) for holder in holders]
            found[next(iter(memory.places()))] = list(itertools.chain(*contained))
        return found

    def weights(self) -> list[Place]:
        """Those that were written: no layer can take turns then."""
        return self._weights.changed()

    def constants(self) -> Constants:
        """Buffers that nobody wrote although what has them ran."""
        return self._snapshot.constants(self._parts)

    def once(self, without: Iterable[nn.Module] = ()) -> list[nn.Module]:
        """Layers that ran once, in that order; those that did not run stay behind those they were behind.

        Not those that ran before something changed its buffers again: no other microbatch may come in between. Nor
        these.
        """
        again = set(without)
        for memory in self._snapshot.changed():
            holders = self._snapshot.holders(memory)
            calls = [k for k, ran in enumerate(self._ran) if ran in holders]
            if len(calls) > 1:
                again.update(self._ran[calls[0] : calls[-1] + 1])
        counts = Counter(self._count)
        found = [layer for layer in counts if counts[layer] == 1 and layer not in again]
        before: nn.Module | None = None
        for layer in self._layers:
            if layer not in counts and layer not in again:
                found.insert(found.index(before) + 1 if before in found else 0, layer)
            before = layer
        return found
