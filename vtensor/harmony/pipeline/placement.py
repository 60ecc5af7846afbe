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

    In the first process, where the program is, stays a layer that shares a parameter or a buffer with anything else,
    and one that a hook of its own reparametrizes (``nn.utils.weight_norm``): hooks of a layer run where it is called.
    """
    return {
        layer: 0 if _shares(model, layer) or _reparametrized(layer) else k % processes
        for k, layers in enumerate(packs)
        for layer in layers
    }


def _reparametrized(layer: nn.Module) -> bool:
    return any(type(hook).__module__.startswith("torch.nn.utils") for hook in layer._forward_pre_hooks.values())


def _own(module: nn.Module) -> list[torch.Tensor]:
    return [t for t in (*module._parameters.values(), *module._buffers.values()) if t is not None]


def _shares(model: nn.Module, layer: nn.Module) -> bool:
    inside = set(layer.modules())
    mine = {id(tensor) for module in inside for tensor in _own(module)}
    return any(id(tensor) in mine for module in model.modules() if module not in inside for tensor in _own(module))
