"""Where microbatches change places: hooks at the layers of each pack.

Covers: stopping before a pack's forward and before its backward, noticing that microbatches are mixed up; finding out
in which order layers run.
Leaves: whose turn it is (``weave``), which layers make a pack (``packs``), what a microbatch that leaves packs out must
wait for (``between``).

With p packs, numbered as they run, a microbatch stops with rank k before the forward of pack k, and with rank 2p - k
before the backward of pack k. The first pack's forward and the last one's backward need no stop: nothing else would
come between.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from ..errors import HarmonyError
from .forwards import in_backward
from .memories import Constants
from .microbatches import tensors_of
from .snapshots import BufferSnapshot
from .weave import Weave

__all__ = ["Order", "Stops"]


class Stops:
    """Hooks on the layers of packs while microbatches are woven; on those that are `here`, if not all are."""

    def __init__(
        self, packs: Sequence[Sequence[nn.Module]], weave: Weave, here: Callable[[nn.Module], bool] | None = None
    ) -> None:
        self._weave, self._layers, self._here = weave, packs, here
        self._handles: list[Any] = []
        self._packs = len(packs)
        # Packs before whose backward there is a stop (the last one's is before its forward); by microbatch, those that
        # it stopped at, and the last that ran and left a graph.
        self._stopping: set[int] = set()
        self._stopped: dict[int, set[int]] = defaultdict(set)
        self._furthest: dict[int, int] = defaultdict(int)
        self._forward_over: set[int] = set()

    def begin(self) -> None:
        """From now on; its hooks come before those that are there."""
        last = self._packs - 1
        for k, layers in enumerate(self._layers):
            for layer in layers:  # a microbatch may leave out the first or the last
                if self._here is not None and not self._here(layer):
                    continue
                self._stopping.add(k)
                if k > 0:  # before hooks of others, which may set what a forward reads
                    self._handles.append(layer.register_forward_pre_hook(self._before(k), prepend=True))
                if k < last:
                    self._handles.append(layer.register_forward_hook(self._after(k)))

    def remove(self) -> None:
        """The model is as it was."""
        for handle in self._handles:
            handle.remove()

    def forward_is_over(self, microbatch: int) -> None:
        """So is its loss: what goes backward from now on is its backward, and no gradient that its loss asks for."""
        self._forward_over.add(microbatch)

    def is_forward_over(self, microbatch: int) -> bool:
        """It runs no modules any more, but for those that run again in backward."""
        return microbatch in self._forward_over

    def stopped_down_to(self, microbatch: int, pack: int) -> bool:
        """Whether its backward has stopped before each pack, from the last one down to this."""
        return all(k < pack or k in self._stopped[microbatch] for k in self._stopping)

    def _before(self, pack: int) -> Callable[..., None]:
        def stop(_module: nn.Module, _args: Any) -> None:
            current = self._weave.current()
            if current is not None and torch.is_grad_enabled():
                if pack == self._packs - 1:
                    self._stopped[current].add(pack)
                self._weave.stop(pack)

        return stop

    def _after(self, pack: int) -> Callable[..., None]:
        def watch(module: nn.Module, _args: Any, output: Any) -> None:
            maker = self._weave.current()
            if maker is None:
                return

            # What a layer made that ran again after others, in this microbatch only, comes before theirs: no stop.
            again = not in_backward() and self._furthest[maker] > pack

            def stop(_gradient: torch.Tensor) -> None:
                current = self._weave.current()
                if current not in (None, maker):
                    raise HarmonyError(
                        f"microbatch {current} went backward through what microbatch {maker} made in a "
                        f"{type(module).__name__}: something kept on the model, or outside of it, went from one to the "
                        "other; hand it through return values"
                    )
                if current in self._forward_over and not again:
                    self._stopped[current].add(pack)
                    self._weave.stop(2 * self._packs - pack)

            for tensor in tensors_of(output):
                if tensor.requires_grad and not tensor.is_leaf:
                    self._furthest[maker] = max(pack, self._furthest[maker])
                    tensor.register_hook(stop)  # type: ignore[no-untyped-call]

        return watch


class Order:
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
        modules = [*self._layers, *self._snapshot.others]
        self._handles = [module.register_forward_pre_hook(self._note) for module in modules]
        self._handles += [part.register_forward_pre_hook(self._note_part) for part in self._snapshot.parts()]

    def _note(self, module: nn.Module, _args: Any) -> None:
        if self._watched():
            self._ran.append(module)
            if self._counted() and module in self._layers and not in_backward():
                self._count.append(module)

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

    def constants(self) -> Constants:
        """Buffers that nobody wrote although what has them ran."""
        return self._snapshot.constants(self._parts)

    def once(self) -> list[nn.Module]:
        """Layers that ran once, in that order; those that did not run stay behind those they were behind.

        Not those that ran before something changed its buffers again: no other microbatch may come in between.
        """
        again = set[nn.Module]()
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
