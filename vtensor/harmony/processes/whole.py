"""Weights, buffers and optimizer states of all processes, together.

Covers: the same beginning for all; all of it in every process, to be saved or evaluated.
Leaves: which process has what (``pipeline.placement``).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from .mail import Mail
from .wire import Layout, layout_of

__all__ = ["gather", "share", "share_state"]


def share(mail: Mail, model: nn.Module, source: Mapping[torch.Tensor, int] = MappingProxyType({})) -> None:
    """Everyone's weights and buffers become those of their `source`, of the first process where there is none.

    A collective: all must call it.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        mail.share(tensor.detach(), source.get(tensor, 0))


def gather(mail: Mail, model: nn.Module, optimizer: torch.optim.Optimizer, owners: Mapping[nn.Module, int]) -> None:
    """Everyone gets the weights, buffers and optimizer states of whoever has them. A collective: all must call it."""
    _same_buffers(mail, model, {part: owner for layer, owner in owners.items() for part in layer.modules()})
    source: dict[torch.Tensor, int] = {}
    for layer, owner in owners.items():
        for tensor in (*layer.parameters(), *layer.buffers()):
            source[tensor] = owner
    share(mail, model, source)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            share_state(mail, optimizer, parameter, source.get(parameter, 0))


def _same_buffers(mail: Mail, model: nn.Module, owners: Mapping[nn.Module, int]) -> None:
    """Where a module made a buffer as it ran, or another one, so does everyone."""
    for module in model.modules():
        passing = module._non_persistent_buffers_set
        own = {
            name: (buffer if buffer is None else layout_of(buffer), name not in passing)
            for name, buffer in module._buffers.items()
        }
        for name, wanted in mail.tell(own, owners.get(module, 0)).items():
            if wanted != own.get(name):
                layout, persistent = wanted
                module._buffers.pop(name, None)
                module.register_buffer(name, None if layout is None else _like(layout), persistent)


def share_state(mail: Mail, optimizer: torch.optim.Optimizer, parameter: torch.Tensor, owner: int) -> None:
    """Everyone gets the optimizer state of one parameter from its owner. A collective: all must call it."""
    own = optimizer.state.get(parameter)
    about: Any = None
    if own is not None and mail.rank == owner:
        about = {name: layout_of(v) if isinstance(v, torch.Tensor) else v for name, v in own.items()}
    about = mail.tell(about, owner)
    if about is None:
        return
    state = optimizer.state[parameter] = optimizer.state.pop(parameter, {})  # in the order of one process
    for name, what in about.items():
        if not isinstance(what, Layout):
            state[name] = what
            continue
        if mail.rank != owner:
            state[name] = _like(what)
        mail.share(state[name], owner)


def _like(layout: Layout) -> torch.Tensor:
    return torch.empty_strided(layout.shape, layout.stride, dtype=layout.dtype, device=layout.device)
