"""Backwards written in Python (``torch.autograd.Function``), which may hand their tensors to kernels that nobody sees.

Covers: what such a backward is given, makes and takes from ``ctx.saved_tensors``.
Leaves: its forward, to the observer (``kernels/torch/torch_observer.h``); taking this away again (``patches``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from ..addresses import raw_address
from ..native.core import Core
from .patches import replace

__all__ = ["watch_backwards"]


class _Backward(threading.local):
    """The innermost backward written in Python that runs in this thread."""

    runs = False
    unseen = False
    """It may write what it is given by kernels that nobody sees."""


def _addresses(values: Any) -> list[int]:
    """Of the tensors among `values`, which may be in lists."""
    found = []
    for value in values:
        if isinstance(value, list):
            found += _addresses(value)
        elif isinstance(value, torch.Tensor):
            found.append(raw_address(value))
    return found


def watch_backwards(core: Core) -> None:
    """A backward written in Python may hand its tensors to kernels that nobody sees (forwards are the observer's).

    So nothing that is made in it is recomputed, and its gradients and what it takes from ``ctx.saved_tensors`` may be
    something else afterwards. On a device where nothing faults they are moreover resident until it returns.
    """
    owner: Any = torch.autograd.function.BackwardCFunction
    unpacked = owner.saved_tensors
    here, ordered = _Backward(), core.ordered()

    def keeping(plain: Callable[..., Any]) -> Callable[..., Any]:
        def apply(self: Any, *args: Any) -> Any:
            before, closed, outer = core.kept(), core.close_eyes(), (here.runs, here.unseen)
            here.runs, here.unseen = True, core.writes_unseen(type(self).__name__.removesuffix("Backward"))
            try:
                if ordered or here.unseen:
                    core.keep(_addresses(args), here.unseen)
                return plain(self, *args)
            finally:
                here.runs, here.unseen = outer
                core.release_kept(before)
                if closed:
                    core.open_eyes()

        return apply

    def saved_tensors(self: Any) -> Any:
        values = unpacked.__get__(self)
        if here.unseen or (ordered and here.runs):
            core.keep(_addresses(values), here.unseen)
        return values

    for name in ("apply", "apply_boxed"):  # torch 2.13 has the second
        if hasattr(owner, name):
            replace(owner, name, keeping(getattr(owner, name)))
    replace(owner, "saved_tensors", property(saved_tensors))
