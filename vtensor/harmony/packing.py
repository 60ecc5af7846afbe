"""A model's layers in the order in which they run, in packs that fit.

Covers: what a layer takes, packs by the budget, the order once it is known.
Leaves: finding layers (``layers``), watching them run (``stops``), cutting rows of sizes (``packs``).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NoReturn

import torch
from torch import nn

from ..errors import HarmonyError
from ..logs import log
from ..session.lifecycle import active_config, is_enabled
from ..settings.sizes import format_bytes
from .buffers.memories import Constants, Place
from .packs import COPIES, cut_evenly, pack
from .turns.layer_order import LayerOrder

__all__ = ["Packing"]

# Of the budget, what weights, gradients and optimizer states of a pack may take: the next one's arrive while it
# computes, and activations need their room.
_PART = 1 / 4


class Packing:
    """Packs of layers.

    Parameters
    ----------
    layers
        As found.
    optimizer
        Whose states count.
    count
        How many packs; None for as few as the budget allows, or one for each layer where there is none.
    multiple
        Of what their number is to be a multiple, if it is not given.
    states
        Whether optimizer states count: where the optimizer is on the device.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        optimizer: torch.optim.Optimizer,
        count: int | None,
        multiple: int,
        states: bool = True,
    ) -> None:
        self.found = list(layers)
        """All of them; of these take turns:"""
        self.layers = list(layers)
        self.ordered = False
        """Whether the layers are in the order in which they run."""
        self.settled = False
        """Whether no weights were written when that was last looked at."""
        self._looked = False
        self.constants: Constants | None = None
        """Buffers that are, as far as the first microbatch has shown."""
        self.budget: int | None = None
        """Of the process that has the least, where several are to have the same packs, 0 if one has none at all; None:
        this one's."""
        self._optimizer, self._count, self._multiple, self._states = optimizer, count, multiple, states

    def packs(self) -> list[list[nn.Module]]:
        """The layers of each pack."""
        sizes = [self._bytes(layer) for layer in self.layers]
        if not sizes:
            return []
        budget = self.budget
        if budget is None:
            budget = active_config().budget if is_enabled() else 0
        if self._count is not None:
            runs = cut_evenly(sizes, self._count)
        elif budget:
            runs = pack(sizes, budget * _PART)
        else:
            runs = [range(k, k + 1) for k in range(len(sizes))]
        if self._count is None and len(runs) % self._multiple:
            runs = cut_evenly(sizes, -(-len(runs) // self._multiple) * self._multiple)
        return [[self.layers[k] for k in run] for run in runs]

    def order_by(self, order: LayerOrder, agreed: Callable[[list[bool]], list[bool]] = list) -> None:
        """From now on layers are those that can take turns, in the order in which they ran.

        None can where weights are written. That is looked at twice, as some are once, by their first data (ActNorm):
        until then none do. Of several processes those take turns that can in all, as `agreed` by them.
        """
        found, unseen, weights = len(self.found), order.unseen(), order.weights()
        once = order.once(itertools.chain(*unseen.values()))
        *can, self.settled = agreed([*(layer in once for layer in self.found), not weights])
        able = set(itertools.compress(self.found, can)) if self.settled else set()
        self.layers, self.constants = [layer for layer in once if layer in able], order.constants()
        self.ordered, self._looked = self.settled or self._looked, True
        if not self.ordered:
            return
        for module in dict.fromkeys(module for module, _ in unseen):
            names = {name: layers for (each, name), layers in unseen.items() if each is module}
            log.warning(
                "Harmony: %s writes a buffer (%s) while its layers run, or outside of its forward. Interleaving them "
                "would change results, so %d layers are not interleaved",
                type(module).__name__, ", ".join(names), max(map(len, names.values())),
            )  # fmt: skip
        if weights:
            module, name = weights[0]
            log.warning(
                "Harmony: weights are written in forward or backward, and not by its optimizer (the %s of %s; %d in "
                "all), as MoCo's momentum encoder is. Interleaving would change results, so %d layers are not "
                "interleaved",
                name, type(module).__name__, len(weights), found,
            )  # fmt: skip
        if found and not order.ran:
            log.warning("Harmony: none of the layers it found is called, so none can take turns; layers= names others")
        elif found and not self.layers and self.settled and not unseen:
            log.warning(
                "Harmony: every layer ran more than once, or between two runs of what changes its buffers, so none can "
                "take turns; layers= names others"
            )
        packs = self.packs()
        log.info(
            "Harmony: %d layers in %d packs of at most %s of weights, gradients and states",
            len(self.layers),
            len(packs),
            format_bytes(max((sum(map(self._bytes, layers)) for layers in packs), default=0)),
        )

    def give_up(self, written: Place) -> NoReturn:
        """Of a buffer that has no order by turns, as a step has shown: from the next one on none are taken.

        Raises
        ------
        HarmonyError
            Always, as that step's would not be the ordinary loop's.
        """
        module, name = written
        self.layers = []
        raise HarmonyError(
            f"a {type(module).__name__} has a buffer ({name}) that was written while its layers took turns, or outside "
            "of its forward, which the first microbatch of all did not show: this step would not be that of the "
            "ordinary loop, and nothing was updated. In later ones no layers take turns; with packs=1 none ever does"
        )

    def _bytes(self, layer: nn.Module) -> int:
        """Weights, gradients and optimizer states of a layer."""
        total = 0
        for parameter in layer.parameters():
            states = self._optimizer.state.get(parameter) if self._states else None
            copies = (COPIES if self._states else COPIES - 2) if parameter.requires_grad else 1
            if states:
                tensors = [s for s in states.values() if isinstance(s, torch.Tensor)]
                total += sum(s.numel() * s.element_size() for s in tensors)
                copies = 2
            total += parameter.numel() * parameter.element_size() * copies
        return total
