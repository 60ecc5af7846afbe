"""Copies for the graph of buffers that the next microbatch writes.

A layer may compute with a buffer that each forward updates (a running scale, a codebook). What its backward needs of it
was there until then in an ordinary loop, where no other forward comes in between.

Covers: which modules may need them, the copies, what the program itself does with what its graph keeps.
Leaves: which buffers are constant (``memories``), layers that run again in backward, which keep nothing (``again``).
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import nn

from ...addresses import storage_of
from ..forwards import Forwards
from .memories import Constants, Place, found, is_plain
from .snapshots import BufferSnapshot

__all__ = ["Kept", "forget_kept"]

_autograd: Any = torch._C._autograd
_OF_TORCH = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_OF_TORCH += (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)  # type: ignore[assignment]


class Kept:
    """Modules whose graph keeps copies in the place of buffers that change, until :meth:`remove`.

    Of hooks of the program's own (``torch.autograd.graph.saved_tensors_hooks``, ``save_on_cpu``) only the innermost are
    asked: they are given the copies.
    """

    def __init__(self, snapshot: BufferSnapshot, constants: Constants | None, without: Collection[nn.Module]) -> None:
        self._forwards = Forwards()
        self.modules: dict[nn.Module, list[Place]] = {}
        """With those of their buffers that change."""
        for module in snapshot.all():
            places = [place for memory in snapshot.memories(module) for place in memory.places()]
            changing = [place for place in places if _may_be_needed(place, constants)]
            if changing and module not in without:
                self.modules[module] = changing
        if self.modules:
            _alive.add(self)
            _take_torch()
        for module, changing in self.modules.items():
            self._forwards.exchange(module, _with_copies(module.forward, changing))

    def remove(self) -> None:
        """The model is as it was; and so is torch, if this was the last."""
        self._forwards.put_back()
        _alive.discard(self)
        _let_go_of_torch()


def forget_kept(model: nn.Module) -> None:
    """No step of the model is under way any more, whether or not what it made was removed."""
    modules = set(model.modules())
    for kept in list(_alive):
        if not modules.isdisjoint(kept.modules):
            _alive.discard(kept)
    _let_go_of_torch()


_alive: weakref.WeakSet[Kept] = weakref.WeakSet()
_torchs_own: Callable[..., None] = _autograd._push_saved_tensors_default_hooks
_running = threading.local()  # its changing buffers, where modules run


def _take_torch() -> None:
    global _torchs_own
    if _autograd._push_saved_tensors_default_hooks is not _push_with_copies:
        _torchs_own = _autograd._push_saved_tensors_default_hooks
        _autograd._push_saved_tensors_default_hooks = _push_with_copies


def _let_go_of_torch() -> None:
    """What torch does with hooks of graphs is its own again, once nobody is left."""
    if not _alive and _autograd._push_saved_tensors_default_hooks is _push_with_copies:
        _autograd._push_saved_tensors_default_hooks = _torchs_own


def _push_with_copies(pack: Callable[[Any], Any], unpack: Callable[[Any], Any]) -> None:
    changing: list[Place] = getattr(_running, "changing", [])
    _torchs_own((lambda tensor: pack(_copied(tensor, changing))) if changing else pack, unpack)


def _with_copies(forward: Callable[..., Any], changing: Collection[Place]) -> Callable[..., Any]:
    def keep(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        around: list[Place] = getattr(_running, "changing", [])
        pack, unpack = _autograd._top_saved_tensors_default_hooks(False) or (_same, _same)
        _running.changing = [*around, *changing]
        try:
            _push_with_copies(pack, unpack)
            try:
                return forward(*args, **kwargs)
            finally:
                _autograd._pop_saved_tensors_default_hooks()
        finally:
            _running.changing = around

    return functools.wraps(forward)(keep)


def _may_be_needed(place: Place, constants: Constants | None) -> bool:
    """Torch's own norms keep their running statistics, and do not read them in the backward of what changed them."""
    module, _ = place
    return type(module) not in _OF_TORCH and (constants is None or not constants.has(place))


def _same(kept: Any) -> Any:
    return kept


def _copied(tensor: torch.Tensor, changing: Collection[Place]) -> torch.Tensor:
    """Of what is kept a copy, if it lies in the memory of such a buffer."""
    if not is_plain(tensor):
        return tensor
    buffers = [found(place) for place in changing]
    memory = {storage_of(buffer)._cdata for buffer in buffers if buffer is not None and is_plain(buffer)}
    return tensor.clone() if storage_of(tensor)._cdata in memory else tensor
