"""Which layer lives in which process.

Covers: packs wrapped around the processes; layers that cannot leave the first.
Leaves: what makes a pack (``packs``).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

__all__ = ["place"]


def place(model: nn.Module, packs: Sequence[Sequence[nn.Module]], processes: int) -> dict[nn.Module, int]:
    """The process of each layer: pack k lives in process k modulo their number.

    A layer that shares a parameter or a buffer with anything else stays in the first process, where the program is.
    """
    return {layer: 0 if _shares(model, layer) else k % processes for k, layers in enumerate(packs) for layer in layers}


def _own(module: nn.Module) -> list[torch.Tensor]:
    return [t for t in (*module._parameters.values(), *module._buffers.values()) if t is not None]


def _shares(model: nn.Module, layer: nn.Module) -> bool:
    inside = set(layer.modules())
    mine = {id(tensor) for module in inside for tensor in _own(module)}
    return any(id(tensor) in mine for module in model.modules() if module not in inside for tensor in _own(module))
