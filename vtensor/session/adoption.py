"""Tensors that are older than the session: finding them, and moving them into managed memory.

Covers: those of modules and optimizers, or given one by one; saying of which nobody thought.
Leaves: what users call (``primitives``), managing them from then on (``kernels/engine/``).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Iterator
from typing import Any
from weakref import WeakSet

import torch
from torch import nn

from .. import native
from ..errors import ConfigError
from ..hooks.doors import address_of, storage_of
from ..logs import log
from ..settings.config import Config
from ..settings.sizes import format_bytes

__all__ = ["Owner", "move_in", "say_what_is_older"]

Owner = nn.Module | torch.optim.Optimizer | torch.Tensor

_PAUSE = 10.0  # seconds between looks: each goes through all objects that Python has
_next = 0.0
_named: WeakSet[nn.Module] = WeakSet()


def move_in(owners: Iterable[Owner], config: Config) -> int:
    """Move their tensors into managed memory; the bytes moved.

    What shares memory with tensors that are not among them stays where it is, as those would not follow.

    Raises
    ------
    ConfigError
        For what has no tensors.
    """
    sharing: dict[int, dict[int, torch.Tensor]] = {}  # tensors of one storage, both by their identity
    for found in _tensors(owners):
        for tensor in (found, found._base):  # a view keeps what it is a view of
            if tensor is not None and _is_older(tensor, config):
                sharing.setdefault(storage_of(tensor)._cdata, {})[id(tensor)] = tensor
    moved = stays = 0
    with torch.no_grad():
        for group in sharing.values():
            tensors = list(group.values())
            old = storage_of(tensors[0])
            if _owners(old) > len(tensors):
                stays += old.nbytes()
                continue
            new = storage_of(torch.empty(old.nbytes(), dtype=torch.uint8, device=tensors[0].device)).copy_(old)
            moved += old.nbytes()
            del old  # it goes with the last of its tensors, before the next one is moved
            for tensor in tensors:
                view = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
                tensor.data = view.set_(new, tensor.storage_offset(), tensor.size(), tensor.stride())
    if stays:
        log.warning(
            "%s are shared with tensors that adopt() was not given, and stay where they are, beside the budget; give "
            "it those, too (the optimizer, a list of views), or let go of them before",
            format_bytes(stays),
        )
    return moved


def _owners(storage: torch.UntypedStorage) -> int:
    """Tensors that use it: `storage` itself is one more."""
    return int(torch._C._storage_Use_Count(storage._cdata)) - 1


def say_what_is_older(config: Config) -> None:
    """Name the modules, each once, whose tensors are not managed because they were made before."""
    global _next
    if time.monotonic() < _next:
        return
    _next = time.monotonic() + _PAUSE
    modules: list[Any] = [found for found in gc.get_objects() if issubclass(type(found), nn.Module)]
    inside = {id(child) for module in modules for child in vars(module).get("_modules", {}).values()}
    for module in modules:
        if id(module) in inside:
            continue
        try:
            if module in _named:
                continue
            _named.add(module)
            older = {storage_of(t)._cdata: storage_of(t) for t in _tensors([module]) if _is_older(t, config)}
        except Exception:  # a module half made, or one with ideas of its own about parameters
            continue
        size = sum(storage.nbytes() for storage in older.values())
        if size:
            log.warning(
                "%s of %s were made before enable(), and stay where they are, beside the budget; "
                "vtensor.adopt(model) moves them into it",
                format_bytes(size),
                type(module).__name__,
            )


def _tensors(owners: Iterable[Any]) -> Iterator[torch.Tensor]:
    for each in owners:
        if isinstance(each, nn.Module):
            yield from _with_gradients((*each.parameters(), *each.buffers()))
        elif isinstance(each, torch.optim.Optimizer):
            yield from _with_gradients(parameter for group in each.param_groups for parameter in group["params"])
            for state in each.state.values():
                yield from (value for value in state.values() if isinstance(value, torch.Tensor))
        elif isinstance(each, torch.Tensor):
            yield each
        else:
            raise ConfigError(f"adopt() takes modules, optimizers and tensors, not a {type(each).__name__}")


def _with_gradients(tensors: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    for tensor in tensors:
        yield tensor
        if tensor.grad is not None:
            yield tensor.grad


def _is_older(tensor: torch.Tensor, config: Config) -> bool:
    if type(tensor) not in (torch.Tensor, nn.Parameter) or tensor.layout != torch.strided:
        return False
    if tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg():
        return False
    if tensor.device.type != config.device or (config.device == "cuda" and tensor.device.index != config.ordinal):
        return False
    if storage_of(tensor).nbytes() < config.min_size:
        return False
    managed = native.load().manages(address_of(tensor))
    return not managed and not tensor.is_shared()  # type: ignore[no-untyped-call]
