"""What a step put on a model and did not take away again, as Ctrl-C comes between any two lines.

A hook may be on its module and in no list yet, and what takes hooks away may itself be interrupted. So after a step
that did not come to its end, all of the model is looked through for what is this package's; and if that did not come to
its end either, before the next.

Covers: hooks of modules and parameters, forwards that were exchanged, what torch pushes for its graphs.
Leaves: taking away what one part put there, in a step that ends (each part's ``remove``).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .buffers.kept import forget_kept
from .forwards import put_back_all

__all__ = ["Leftovers"]

_OURS = __name__.rpartition(".")[0] + "."
_OF_MODULES = ("_forward_pre_hooks", "_forward_hooks")
_KINDS = ("_forward_pre_hooks_with_kwargs", "_forward_hooks_with_kwargs", "_forward_hooks_always_called")
_OF_PARAMETERS = ("_backward_hooks", "_post_accumulate_grad_hooks")


class Leftovers:
    """A context around each step of a model; what an optimizer has may be of others."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model, self._optimizer = model, optimizer
        self._may_be = False

    def __enter__(self) -> None:
        if self._may_be:
            self._take_away()
        self._may_be = True

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._take_away()
        self._may_be = False

    def _take_away(self) -> None:
        forget_kept(self._model)
        for module in self._model.modules():
            put_back_all(module)
            for name in _OF_MODULES:
                for key in _ours(getattr(module, name)):
                    for kind in (name, *_KINDS):
                        getattr(module, kind).pop(key, None)
        optimized = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        for parameter in dict.fromkeys([*self._model.parameters(), *optimized]):
            for name in _OF_PARAMETERS:
                hooks = getattr(parameter, name, None) or {}
                for key in _ours(hooks):
                    hooks.pop(key, None)


def _ours(hooks: dict[int, Any]) -> list[int]:
    return [key for key, hook in list(hooks.items()) if str(getattr(hook, "__module__", "")).startswith(_OURS)]
