"""What people use today to train in less memory, each on an unmodified model.

Covers: checkpoints per block, saved tensors in the host's memory (torch's, ours, TRL's), the compiler's own budget.
Leaves: training by them (``training``), comparing them (``compare``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

__all__ = ["PEERS", "NotSupportedError", "Way"]

Around = contextlib.AbstractContextManager[Any]


class NotSupportedError(Exception):
    """The way refuses this model, or is not installed; its words say why."""


@dataclass(frozen=True)
class Way:
    """How a model is prepared, and what its forward pass runs in."""

    prepare: Callable[[nn.Module, str, float], nn.Module] = lambda model, _block, _share: model
    """Of a model, the class of its blocks, and the share of its peak that there is."""
    around: Callable[[nn.Module], Around] = lambda _model: contextlib.nullcontext()
    same_bits: bool = True
    """Whether it promises what plain torch computes, to the last bit."""


def _per_block(model: nn.Module, block: str, _share: float) -> nn.Module:
    """With ``torch.utils.checkpoint`` itself: some models refuse ``gradient_checkpointing_enable``."""
    blocks = [module for module in model.modules() if type(module).__name__ == block]
    if not blocks:
        raise NotSupportedError(f"the model has no {block}")
    for module in blocks:
        module.forward = _checkpointed(module.forward)
    return model


def _checkpointed(forward: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *given, **named: checkpoint(forward, *given, use_reentrant=False, **named)


def _compiled(model: nn.Module, _block: str, share: float) -> nn.Module:
    import torch._functorch.config as functorch

    torch.compiler.reset()  # graphs that were compiled for another budget would be used again
    functorch.activation_memory_budget = share
    return torch.compile(model)  # type: ignore[return-value]


def _pins() -> bool:
    return torch.cuda.is_available()


def _stock_offload(_model: nn.Module) -> Around:
    return torch.autograd.graph.save_on_cpu(pin_memory=_pins())


def _fair_offload(model: nn.Module) -> Around:
    """Like ``save_on_cpu``, without waiting for copies out and without moving parameters."""
    parameters = {p.untyped_storage()._cdata for p in model.parameters()}

    def pack(tensor: torch.Tensor) -> Any:
        if tensor.device.type != "cuda" or tensor.untyped_storage()._cdata in parameters:
            return tensor
        packed = torch.empty(tensor.size(), dtype=tensor.dtype, layout=tensor.layout, pin_memory=_pins())
        packed.copy_(tensor, non_blocking=True)
        return tensor.device, packed

    def unpack(packed: Any) -> torch.Tensor:
        return packed if isinstance(packed, torch.Tensor) else packed[1].to(packed[0], non_blocking=True)

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


def _trl_offload(_model: nn.Module) -> Around:
    try:
        from trl.models.activation_offloading import OffloadActivations
    except ImportError as error:
        raise NotSupportedError(f"not installed: {error}") from None
    if not torch.cuda.is_available():
        raise NotSupportedError("TRL offloads from a GPU only")
    offloading: Around = OffloadActivations()
    return offloading


PEERS: dict[str, Way] = {
    "checkpoint per block": Way(_per_block),
    "save_on_cpu, stock": Way(around=_stock_offload),
    "save_on_cpu, fair": Way(around=_fair_offload),
    "checkpoint per block, rest on the host": Way(_per_block, _fair_offload),
    "TRL OffloadActivations": Way(around=_trl_offload),
    "torch.compile, its memory budget": Way(_compiled, same_bits=False),
}
