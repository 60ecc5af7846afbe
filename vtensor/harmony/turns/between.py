"""What lies between packs, in the order of the microbatches.

Packs are passed in that order, and so is what follows them, as long as each microbatch stops at each pack. One that
leaves a pack out would come to what follows before the others, and running statistics and sums of gradients would be
others than those of the ordinary loop.

Covers: waiting for those before, at modules that have buffers, and at the parameters of a microbatch that did not stop
where the others do; refusing a module that changes its buffers and turns out to run, again perhaps, when a later
microbatch has run it, and buffers that turn out to be written unseen.
Leaves: stops (``stops``), whose turn it is (``weave``), layers that run more than once in the first microbatch, which
take no turns (``layer_order``).
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from ...errors import HarmonyError
from ..buffers.memories import Constants, Memory, Place
from ..buffers.snapshots import BufferSnapshot
from ..forwards import in_backward
from .stops import Stops
from .weave import Weave

__all__ = ["Between"]


class Between:
    """Hooks of one step, until :meth:`remove`."""

    def __init__(
        self,
        model: nn.Module,
        packs: Sequence[Sequence[nn.Module]],
        weave: Weave,
        stops: Stops,
        constants: Constants | None,
    ) -> None:
        self._model, self._packs, self._weave, self._stops = model, packs, weave, stops
        self._layers = list(itertools.chain(*packs))
        self.snapshot = BufferSnapshot(model, self._layers, constants)
        """Buffers as they are when the step begins."""
        outside = [*self.snapshot.others, *self.snapshot.containers]
        memories = dict.fromkeys(memory for module in outside for memory in self.snapshot.memories(module))
        self._outside = {memory: memory.now(compared=False) for memory in memories}
        self._newest: dict[Memory, int] = defaultdict(int)  # by memory of buffers: the last microbatch there
        self._calls: dict[tuple[int, nn.Module], int] = defaultdict(int)
        self._passed: dict[Any, set[int]] = defaultdict(set)  # by module and number of its call, or by parameter
        self._handles: list[Any] = []
        self._last: dict[int, int] = defaultdict(lambda: -1)  # by microbatch: which of all layers ran last
        self._turned_back: set[int] = set()  # microbatches that ran a layer again, or before its time

    def begin(self) -> None:
        """From now on; its hooks come before those that are there."""
        pack_of = {layer: k for k, layers in enumerate(self._packs) for layer in layers}
        for module in self.snapshot.all():  # before hooks of others, which may change its buffers, too
            pack = pack_of.get(module, len(self._packs))
            self._handles.append(module.register_forward_pre_hook(self._comes(pack), prepend=True))
            self._handles.append(module.register_forward_hook(self._leaves))
        for position, layer in enumerate(self._layers):
            self._handles.append(layer.register_forward_pre_hook(self._proceeds(position)))
        for parameter, pack in _complete_by(self._model, self._packs).items():
            if parameter.requires_grad:
                wait = self._before_adding(parameter, pack)
                self._handles.append(parameter.register_hook(wait))  # type: ignore[no-untyped-call]

    def remove(self) -> None:
        """The model is as it was."""
        for handle in self._handles:
            handle.remove()

    # --- forward ------------------------------------------------------------------------------------------------

    def _comes(self, pack: int) -> Callable[..., None]:
        """To a module that has buffers: who is past the `pack` that it is in has run it, or never will."""

        def comes(module: nn.Module, _args: Any) -> None:
            current = self._weave.current()
            if current is None:
                return
            if not in_backward():
                self._calls[current, module] += 1
                passed = self._passed[module, self._calls[current, module]]
                self._weave.wait_for_those_before(
                    lambda one: one in passed or self._stops.is_forward_over(one) or self._weave.rank(one) > pack
                )
            self._runs(module, current)

        return comes

    def _leaves(self, module: nn.Module, *_: Any) -> None:
        current = self._weave.current()
        if current is not None and not in_backward():
            self._passed[module, self._calls[current, module]].add(current)

    def unseen(self) -> Place | None:
        """A buffer outside of layers that was written in this step although what has it was not seen to run.

        As autograd counts: what the first microbatch did not show is not looked for any closer.
        """
        for memory, before in self._outside.items():
            if memory not in self._newest and not (before.is_still() or before.is_carried_on()):
                return next(iter(memory.places()))
        return None

    def _runs(self, module: nn.Module, current: int) -> None:
        for memory in self.snapshot.memories(module):
            newest = self._newest[memory] = max(current, self._newest[memory])
            if newest > current and not memory.is_still():
                names = {each: name for name, each in self._model.named_modules()}
                raise HarmonyError(
                    f"{names[module]} ran in microbatch {current} when a later one had run it already, and changes its "
                    "buffers: they would not be those of the ordinary loop. Leave it out of layers=, or pass packs=1; "
                    "layers that run again in the first microbatch of all, forward or backward, are left out by "
                    "themselves"
                )

    def _proceeds(self, position: int) -> Callable[..., None]:
        def note(_module: nn.Module, _args: Any) -> None:
            current = self._weave.current()
            if current is not None and not in_backward():
                if position <= self._last[current]:
                    self._turned_back.add(current)
                self._last[current] = max(position, self._last[current])

        return note

    # --- backward -----------------------------------------------------------------------------------------------

    def _before_adding(self, parameter: torch.Tensor, pack: int) -> Callable[[torch.Tensor], None]:
        passed = self._passed[parameter]

        def wait(_gradient: torch.Tensor) -> None:
            current = self._weave.current()
            if current is None or not self._stops.is_forward_over(current):  # its loss asks for a gradient
                return
            in_order = self._stops.stopped_down_to(current, pack) and not self._weave.is_behind_one_that_waits()
            if not in_order or any(one < current for one in self._turned_back):
                self._weave.wait_for_those_before(passed.__contains__)
            passed.add(current)

        return wait


def _complete_by(model: nn.Module, packs: Sequence[Sequence[nn.Module]]) -> dict[nn.Parameter, int]:
    """By parameter, the pack with whose backward its gradient is complete: the first that has it, or of all."""
    found: dict[nn.Parameter, int] = {}
    outside = set(model.modules())
    for k, layers in enumerate(packs):
        for layer in layers:
            outside.difference_update(layer.modules())
            for parameter in layer.parameters():
                found.setdefault(parameter, k)
    for module in outside:
        for parameter in module.parameters(recurse=False):
            found[parameter] = 0
    return found
