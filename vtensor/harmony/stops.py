"""Where microbatches change places: hooks at the layers of each pack.

Covers: stopping before a pack's forward and before its backward, noticing that microbatches are mixed up; finding out
in which order layers run.
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

from ..errors import HarmonyError
from .microbatches import tensors_of
from .weave import Weave

__all__ = ["Order", "Stops"]


class Stops:
    """Hooks on the layers of packs while microbatches are woven; on those that are `here`."""

    def __init__(
        self, packs: Sequence[Sequence[nn.Module]], weave: Weave, here: Callable[[nn.Module], bool] = lambda _: True
    ) -> None:
        self._weave = weave
        self._handles: list[Any] = []
        last = len(packs) - 1
        for k, layers in enumerate(packs):
            for layer in filter(here, layers):  # a microbatch may leave out the first or the last
                if k > 0:  # before hooks of others, which may set what a forward reads
                    self._handles.append(layer.register_forward_pre_hook(self._before(k), prepend=True))
                if k < last:
                    self._handles.append(layer.register_forward_hook(self._after(2 * len(packs) - k)))

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
        def watch(module: nn.Module, _args: Any, output: Any) -> None:
            maker = self._weave.current()
            if maker is None:
                return

            def stop(_gradient: torch.Tensor) -> None:
                current = self._weave.current()
                if current not in (None, maker):
                    raise HarmonyError(
                        f"microbatch {current} went backward through what microbatch {maker} made in a "
                        f"{type(module).__name__}: something kept on the model, or outside of it, went from one to the "
                        "other; hand it through return values"
                    )
                if current is not None:
                    self._weave.stop(rank)

            for tensor in tensors_of(output):
                if tensor.requires_grad and not tensor.is_leaf:
                    tensor.register_hook(stop)  # type: ignore[no-untyped-call]

        return watch


class Order:
    """In which order layers run, each how often; found out while `watched` says yes, which is for one microbatch."""

    def __init__(self, layers: Sequence[nn.Module], watched: Callable[[], bool]) -> None:
        self._layers, self._watched = list(layers), watched
        self.ran: list[nn.Module] = []
        self._handles = [layer.register_forward_pre_hook(self._note) for layer in layers]

    def _note(self, module: nn.Module, _args: Any) -> None:
        again = torch._C._current_graph_task_id() >= 0  # in backward: the user's own checkpoints
        if self._watched() and not again:
            self.ran.append(module)

    def remove(self) -> None:
        """The model is as it was."""
        for handle in self._handles:
            handle.remove()

    def once(self) -> list[nn.Module]:
        """Layers that ran once, in that order; those that did not run stay behind those they were behind."""
        found = [layer for layer in dict.fromkeys(self.ran) if self.ran.count(layer) == 1]
        before: nn.Module | None = None
        for layer in self._layers:
            if layer not in self.ran:
                found.insert(found.index(before) + 1 if before in found else 0, layer)
            before = layer
        return found
