"""Other functions in the place of layers' ``forward``, until they are put back.

Covers: the exchange; some libraries set an own ``forward``, too, which comes back then; whether one runs again; hooks
of compiled modules.
Leaves: what is put there (``again``, ``pipeline``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

__all__ = ["Forwards", "in_backward", "put_back_all", "untraced"]


def in_backward() -> bool:
    """Whether a forward runs again: the user's own checkpoints."""
    return torch._C._current_graph_task_id() >= 0


def untraced(hook: Callable[..., Any]) -> Callable[..., Any]:
    """The same, into which a compiler of the module does not look, if there is one."""
    dynamo = sys.modules.get("torch._dynamo")
    return hook if dynamo is None else dynamo.disable(hook)


class Forwards:
    """Which were exchanged."""

    def __init__(self) -> None:
        self._before: list[tuple[nn.Module, Any]] = []

    def exchange(self, layer: nn.Module, forward: Callable[..., Any]) -> None:
        """From now on calling the layer calls this."""
        own = vars(layer).get("forward")
        self._before.append((layer, own))
        forward.in_place_of = own  # type: ignore[attr-defined]  # should nobody be left who knows
        layer.forward = forward

    def put_back(self) -> None:
        """The layers are as they were."""
        for layer, own in self._before:
            _set(layer, own)


def put_back_all(layer: nn.Module) -> None:
    """Whoever exchanged its forward, and how often."""
    while (forward := vars(layer).get("forward")) is not None and hasattr(forward, "in_place_of"):
        _set(layer, forward.in_place_of)


def _set(layer: nn.Module, own: Any) -> None:
    if own is None:
        vars(layer).pop("forward", None)
    else:
        layer.forward = own
