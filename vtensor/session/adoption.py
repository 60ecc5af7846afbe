"""Tensors that are older than the session: finding them, and moving them into managed memory.

Covers: those of modules and optimizers, or given one by one; saying of which nobody thought.
Leaves: what users call (``enabling``), managing them from then on (``kernels/engine/``).
"""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import nn

from .. import native
from ..addresses import address_of, storage_of
from ..errors import ConfigError
from ..logs import log
from ..settings.config import Config
from ..settings.sizes import format_bytes

__all__ = ["Owner", "move_in", "say_what_is_older"]

Owner = nn.Module | torch.optim.Optimizer | torch.Tensor

_SHARE = 20  # times as long as a look took there is none: each goes through all objects that Python has
_FREE = 8  # looks before that holds: a notebook begins a session, makes a model, and begins another
_looks = 0
_next = 0.0
_GIVEN_BACK = 1 << 30  # bytes moved, from which on torch gives back to the device what it keeps of their old memory
_named: WeakValueDictionary[int, nn.Module] = WeakValueDictionary()  # by identity: a module may have no hash


def move_in(owners: Iterable[Owner], config: Config) -> int:
    """Move their tensors into managed memory; the bytes moved.

    What somebody else looks at stays where it is: NumPy would not follow. It has a tensor of its own to look through,
    as others have views, so what shares memory with tensors that are not among them stays, too.

    Raises
    ------
    ConfigError
        For what has no tensors.
    """
    given = list(owners)
    with torch._C.DisableTorchFunctionSubclass():
        moved = _move_in(_tensors(given), config)
    for each in given:
        _named.pop(id(each), None)  # what outlives this session is older than the next
    return moved


def _move_in(tensors: Iterable[torch.Tensor], config: Config) -> int:
    sharing: dict[int, dict[int, torch.Tensor]] = {}  # tensors of one storage, both by their identity
    handles: Counter[int] = (
        Counter()
    )  # that torch has of tensors, besides Python's: of gradients, and of what views are of
    for found in tensors:
        handles[id(found.grad if found.is_leaf else None)] += 1
        for tensor in (found, found._base):
            if tensor is not None and _is_older(tensor, config):
                sharing.setdefault(storage_of(tensor)._cdata, {})[id(tensor)] = tensor
    for group in sharing.values():
        handles.update(id(tensor._base) for tensor in group.values())
    core = native.load()
    moved = stays = kept = 0
    _wait_for(config)  # whoever uses the old memory on other streams
    closed = core.close_eyes()  # to make it again, a copy would be kept of what was moved
    try:
        for group in sharing.values():
            first = next(iter(group.values()))
            size = (old := storage_of(first)).nbytes()
            if _owners(old) > len(group) or any(_is_others(each, 1 + handles[id(each)]) for each in group.values()):
                stays += size
                continue
            fresh = torch.empty(size, dtype=torch.uint8, device=first.device)
            storage_of(fresh).copy_(old)
            core.swap_memory(first._cdata, fresh._cdata)
            moved += size
            _wait_for(config)  # the copy: the old memory is free from here on
            del fresh
            if (kept := kept + size) >= _GIVEN_BACK:
                _give_back(config)
                kept = 0
    finally:
        if closed:
            core.open_eyes()
    _give_back(config)
    if stays:
        log.warning(
            "%s are shared with what adopt() was not given, so they stay where they are, outside the budget: pass "
            "those tensors, too (the optimizer, a list of views), or delete them first (a loss, a NumPy array); memory "
            "of NumPy or another library must be copied first (tensor.data = tensor.data.clone())",
            format_bytes(stays),
        )
    return moved


def _wait_for(config: Config) -> None:
    if config.device == "cuda":
        torch.cuda.synchronize(config.ordinal)


def _give_back(config: Config) -> None:
    """What torch keeps of memory that was freed: the device may lack it for chunks."""
    if config.device == "cuda":
        torch.cuda.empty_cache()


def _is_others(tensor: torch.Tensor, handles: int) -> bool:
    """Whether somebody who is no tensor may look at its memory. `handles`: as many as are known to be had of it.

    DLPack has one more of the tensor that it was given, as has a graph that has yet to run backward, which is why those
    of parameters are not counted.
    """
    whose = native.load().whose_memory(tensor._cdata)
    if whose != "allocator":
        return whose == "lender" or not _is_file(address_of(tensor))
    return not tensor.requires_grad and tensor._use_count() > handles  # type: ignore[attr-defined]


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
    global _looks, _next
    if (begun := time.monotonic()) < _next and _looks >= _FREE:
        return
    _looks += 1
    if _older(config):
        gc.collect()  # what nobody has any more, nobody can move
        for module, size in _older(config):
            _named[id(module)] = module
            log.warning(
                "%s of %s were made before enable(), so they stay where they are, outside the budget; "
                "vtensor.adopt(model, optimizer) moves them into it",
                format_bytes(size),
                type(module).__name__,
            )
    _next = time.monotonic() + _SHARE * (time.monotonic() - begun)


def _older(config: Config) -> list[tuple[nn.Module, int]]:
    """Modules that nobody has named yet, outermost ones only, and what bytes of theirs are older."""
    modules: list[Any] = [found for found in gc.get_objects() if issubclass(type(found), nn.Module)]
    inside = {id(child) for module in modules for child in vars(module).get("_modules", {}).values()}
    found = []
    for module in modules:
        if id(module) in inside or _named.get(id(module)) is module:
            continue
        try:
            with torch._C.DisableTorchFunctionSubclass():
                older = {storage_of(t)._cdata: storage_of(t) for t in _tensors([module]) if _is_older(t, config)}
        except Exception:  # a module half made, or one with ideas of its own about parameters
            continue
        if older:
            found.append((module, sum(storage.nbytes() for storage in older.values())))
    return found


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
    shared = config.device == "cpu" and tensor.is_shared()  # type: ignore[no-untyped-call]  # all of a GPU's are said to be
    return not managed and not shared
