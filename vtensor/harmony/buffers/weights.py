"""Weights that a forward writes, as a momentum encoder's are, or a hook in backward.

Microbatches that take turns would all read what the last of them wrote. So layers take none if the first microbatch of
all writes weights; how that looks later is not looked for, as the optimizer writes them all.

Covers: which weights hold something else than before.
Leaves: when to look (``layer_order``), what is said (``packing``), buffers (``writes``).
"""

from __future__ import annotations

import torch
from torch import nn

from .memories import Place, bytes_of, is_plain, past_the_program

__all__ = ["WeightSums"]


class WeightSums:
    """Of a model, as its weights are when this is made; each look reads all of them once.

    By sums of their bits: copies would take the room that there is not, and versions miss what is written past autograd
    (``.data``), and count what only moves (``flatten_parameters``).
    """

    def __init__(self, model: nn.Module) -> None:
        self._places = [
            (module, name)
            for module in model.modules()
            for name, weight in module._parameters.items()
            if weight is not None and is_plain(weight)
        ]
        self._sums = self._summed()

    def changed(self) -> list[Place]:
        """Where there are others by now."""
        now = self._summed()
        return [place for place, before, after in zip(self._places, self._sums, now, strict=True) if before != after]

    def _summed(self) -> list[int]:
        with past_the_program(), torch.no_grad():
            return [_sum(module._parameters.get(name)) for module, name in self._places]


def _sum(weight: torch.Tensor | None) -> int:
    """Of eight bytes at a time: 20 times as fast as of four."""
    if weight is None or not is_plain(weight):
        return 0
    each = bytes_of(weight)
    each = each if each.storage_offset() % 8 == 0 else each.clone()
    whole = each.numel() // 8 * 8
    return int(each[:whole].view(torch.int64).sum() + each[whole:].sum())
