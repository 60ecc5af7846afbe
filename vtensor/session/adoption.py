"""Tensors that are older than the session: finding them, and moving them into managed memory.

Covers: those of modules and optimizers, or given one by one; saying of which nobody thought.
Leaves: what users call (``primitives``), managing them from then on (``kernels/engine/``).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
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

_SHARE = 20  # times as long as a look took there is none: each goes through all objects that Python has
_next = 0.0
_named: WeakSet[nn.Module] = WeakSet()


def move_in(owners: Iterable[Owner], config: Config) -> int:
    """Move their tensors into managed memory; the bytes moved.

    What somebody else looks at stays where it is: NumPy would not follow. It has a tensor of its own to look through,
    as others have views, so what shares memory with tensors that are not among them stays, too.

    Raises
    ------
    ConfigError
        For what has no tensors.
    """
    with torch._C.DisableTorchFunctionSubclass():
        return _move_in(_tensors(owners), config)


def _move_in(tensors: Iterable[torch.Tensor], config: Config) -> int:
    sharing: dict[int, dict[int, torch.Tensor]] = {}  # tensors of one storage, both by their identity
    kept: set[int] = set()  # those that torch keeps itself: what views are of, and gradients
    for found in tensors:
        kept |= {id(found._base), id(found.grad if found.is_leaf else None)}
        for tensor in (found, found._base):  # a view keeps what it is a view of
            if tensor is not None and _is_older(tensor, config):
                sharing.setdefault(storage_of(tensor)._cdata, {})[id(tensor)] = tensor
    core = native.load()
    moved = stays = 0
    closed = core.close_eyes()  # to make it again, a copy would be kept of what was moved
    try:
        for group in sharing.values():
            first = next(iter(group.values()))
            size = (old := storage_of(first)).nbytes()
            if _owners(old) > len(group) or any(_is_others(each, id(each) in kept) for each in group.values()):
                stays += size
                continue
            fresh = torch.empty(size, dtype=torch.uint8, device=first.device)
            storage_of(fresh).copy_(old)
            core.swap_memory(first._cdata, fresh._cdata)
            moved += size
            del fresh  # with the old memory, before the next one is moved
    finally:
        if closed:
            core.open_eyes()
    if stays:
        log.warning(
            "%s are shared with what adopt() was not given, and stay where they are, beside the budget; give it those "
            "tensors, too (the optimizer, a list of views), or let go of them before (NumPy arrays, a loss)",
            format_bytes(stays),
        )
    return moved


def _is_others(tensor: torch.Tensor, kept: bool) -> bool:
    """Whether somebody who is no tensor may look at its memory. `kept`: torch itself refers to it.

    NumPy and DLPack are given what needs no gradient itself; of others a tensor of their own, which shares the storage.
    """
    core = native.load()
    if not core.is_allocated(tensor._cdata):
        return not _is_file(address_of(tensor))
    if tensor.requires_grad:
        return False
    handles = tensor._use_count()  # type: ignore[attr-defined]
    return bool(core.was_given_to_numpy(tensor._cdata)) or (not kept and handles > 1)


def _is_file(address: int) -> bool:
    """Whether this is a file's content, which nobody sees it written to (``torch.load(mmap=True)``, safetensors)."""
    with Path("/proc/self/maps").open() as lines:
        for line in lines:
            addresses, rights, *_, path = line.split(maxsplit=5)
            begin, end = (int(number, 16) for number in addresses.split("-"))
            if begin <= address < end:
                return rights.endswith("p") and path.startswith("/")
    return False


def _owners(storage: torch.UntypedStorage) -> int:
    """Tensors that use it: `storage` itself is one more."""
    return int(torch._C._storage_Use_Count(storage._cdata)) - 1


def say_what_is_older(config: Config) -> None:
    """Name the modules, each once, whose tensors are not managed because they were made before."""
    global _next
    if (begun := time.monotonic()) < _next:
        return
    modules: list[Any] = [found for found in gc.get_objects() if issubclass(type(found), nn.Module)]
    inside = {id(child) for module in modules for child in vars(module).get("_modules", {}).values()}
    for module in modules:
        if id(module) in inside:
            continue
        try:
            if module in _named:
                continue
            older = {storage_of(t)._cdata: storage_of(t) for t in _tensors([module]) if _is_older(t, config)}
            if older:
                _named.add(module)
        except Exception:  # a module half made, or one with ideas of its own about parameters
            continue
        if older:
            log.warning(
                "%s of %s were made before enable(), and stay where they are, beside the budget; "
                "vtensor.adopt(model) moves them into it",
                format_bytes(sum(storage.nbytes() for storage in older.values())),
                type(module).__name__,
            )
    _next = time.monotonic() + _SHARE * (time.monotonic() - begun)


def _tensors(owners: Iterable[Any]) -> Iterator[torch.Tensor]:
    for each in owners:
        if isinstance(each, nn.Module):
            yield from _with_gradients((*each.parameters(), *each.buffers()))
        elif isinstance(each, torch.optim.Optimizer):
            yield from _with_gradients(parameter for group in each.param_groups for parameter in group["params"])
            yield from _within(list(each.state.values()))
        elif isinstance(each, torch.Tensor):
            yield each
        else:
            raise ConfigError(f"adopt() takes modules, optimizers and tensors, not a {type(each).__name__}")


def _within(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _within(each)


def _with_gradients(tensors: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    for tensor in tensors:
        yield tensor
        if tensor.grad is not None:
            yield tensor.grad


def _is_older(tensor: torch.Tensor, config: Config) -> bool:
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ or tensor.layout != torch.strided:
        return False  # a subclass that is made of others
    if tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg():
        return False
    if tensor.device.type != config.device or (config.device == "cuda" and tensor.device.index != config.ordinal):
        return False
    if storage_of(tensor).nbytes() < config.min_size:
        return False
    managed = native.load().manages(address_of(tensor))
    return not managed and not tensor.is_shared()  # type: ignore[no-untyped-call]
