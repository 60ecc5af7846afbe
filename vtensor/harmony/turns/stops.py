"""Where microbatches change places: hooks at the layers of each pack.

Covers: stopping before a pack's forward and before its backward, noticing that microbatches are mixed up.
Leaves: whose turn it is (``weave``), which layers make a pack (``packs``), in which order they run (``layer_order``),
what a microbatch that leaves packs out must wait for (``between``).

With p packs, numbered as they run, a microbatch stops with rank k before the forward of pack k, and with rank 2p - k
before the backward of pack k. The first pack's forward and the last one's backward need no stop: nothing else would
come between.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from ...errors import HarmonyError
from ..forwards import in_backward
from ..microbatches import tensors_of
from .weave import Weave

__all__ = ["Stops"]


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
