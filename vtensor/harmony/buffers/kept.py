"""Copies for the graph of buffers that the next microbatch writes.

A layer may compute with a buffer that each forward updates (a running scale, a codebook). What its backward needs of it
was there until then in an ordinary loop, where no other forward comes in between.

Covers: which modules may need them, the copies.
Leaves: which buffers are constant (``memories``), layers that run again in backward, which keep nothing (``again``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from ...addresses import storage_of
from ..forwards import Forwards
from .memories import Constants, Place, is_plain
from .snapshots import BufferSnapshot

__all__ = ["Kept"]


class Kept:
    """Modules whose graph keeps copies in the place of buffers that change, until :meth:`remove`."""

    def __init__(self, snapshot: BufferSnapshot, constants: Constants | None, without: Collection[nn.Module]) -> None:
        self._forwards = Forwards()
        for module in snapshot.all():
            places = [place for memory in snapshot.memories(module) for place in memory.places()]
            changing = [place for place in places if _may_be_needed(place, constants)]
            if changing and module not in without:
                self._forwards.exchange(module, _with_copies(module.forward, changing))

    def remove(self) -> None:
        """The model is as it was."""
        self._forwards.put_back()


def _may_be_needed(place: Place, constants: Constants | None) -> bool:
    """Torch's own norms keep their running statistics, and do not read them in the backward of what changed them."""
    module, _ = place
    return not isinstance(module, nn.modules.batchnorm._NormBase) and (constants is None or not constants.has(place))


def _others_keep() -> bool:
    """The program says itself what its graph keeps: nothing in a checkpoint, copies in the host's memory."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


def _with_copies(forward: Callable[..., Any], changing: Collection[Place]) -> Callable[..., Any]:
    def pack(tensor: torch.Tensor) -> torch.Tensor:
        buffers = [module._buffers.get(name) for module, name in changing]
        memory = {storage_of(buffer)._cdata for buffer in buffers if buffer is not None and is_plain(buffer)}
        return tensor.clone() if is_plain(tensor) and storage_of(tensor)._cdata in memory else tensor

    def keep(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled() or _others_keep():
            return forward(*args, **kwargs)
        with saved_tensors_hooks(pack, lambda kept: kept):
            return forward(*args, **kwargs)

    functools.update_wrapper(keep, forward)
    return keep
