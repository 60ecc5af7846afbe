"""What is done with a storage itself, past torch's operations: saved, loaded, copied, resized.

Covers: on a CPU, files that are written and read by system calls at a storage's address (``torch.save``,
``torch.jit.save``, safetensors), where it is mapped for the length of the call, and copies (``copy.deepcopy`` of a
tensor), which torch allocates past its allocator; on a GPU, resizing, which copies past its dispatcher.
Leaves: addresses that are given away for good (``doors``).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ..addresses import raw_address, storage_of
from ..native.core import Core
from .imports import when_imported
from .patches import named_as, replace
from .scripted import tensors_of_scripted

__all__ = ["watch_storages"]

_AT_ITS_ADDRESS: list[tuple[Any, str]] = [
    (torch._C.PyTorchFileWriter, "write_record"),
    (torch.UntypedStorage, "_write_file"),
    (torch.UntypedStorage, "_set_from_file"),
]
_INTO_WHAT_IT_MAKES: list[tuple[Any, str]] = [
    (torch._C.PyTorchFileReader, name) for name in ("__init__", "get_record", "get_storage_from_record")
]
_OF_SCRIPTS: list[tuple[Any, str, str]] = [  # to a file, and to bytes
    (torch._C.ScriptModule, "save", "save_to_buffer"),
    (torch._C.ScriptModule, "_save_for_mobile", "_save_to_buffer_for_mobile"),
    (torch._C.ScriptFunction, "save", "save_to_buffer"),
]
_SAFETENSORS = "safetensors.torch"


@contextlib.contextmanager
def _mapped(addresses: Iterable[int], core: Core, *, made: bool = False) -> Iterator[None]:
    given = core.Given()
    try:
        given.add([address for address in addresses if address])
        if made:
            given.add_what_is_made()
        yield
    finally:
        given.end()


def _mapping(
    call: Callable[..., Any], addresses: Callable[..., Iterable[int]], core: Core, *, made: bool = False
) -> Callable[..., Any]:
    """With what it is given mapped, and what it makes if that is `made` past torch's operations."""

    @functools.wraps(call)
    def calls(*args: Any, **kwargs: Any) -> Any:
        with _mapped(addresses(*args, *kwargs.values()), core, made=made):
            return call(*args, **kwargs)

    return calls


def _of_storages(*args: Any) -> list[int]:
    return [raw_address(value) for value in args if isinstance(value, torch.UntypedStorage)]


def _saving_script(save: Callable[..., Any], save_to_bytes: Callable[..., bytes], core: Core) -> Callable[..., Any]:
    """With what the script holds mapped; by way of the host's memory, where nobody can tell what that is."""

    @functools.wraps(save)
    def saves(self: Any, filename: str, *args: Any, **kwargs: Any) -> None:
        try:
            held = [raw_address(storage_of(each)) for each in tensors_of_scripted(self) if raw_address(each)]
        except RuntimeError:  # an object of a class that Python does not know, as in what torch.jit.load gives
            Path(filename).write_bytes(save_to_bytes(self, *args, **kwargs))
            return
        with _mapped(held, core, made=True):
            save(self, filename, *args, **kwargs)

    return saves


def _of_specs(*args: Any) -> list[int]:
    """Of what safetensors is about to write; in older versions, which hand over bytes, none."""
    return [getattr(spec, "data_ptr", 0) for given in args if isinstance(given, dict) for spec in given.values()]


def _watch_safetensors(module: ModuleType, core: Core) -> None:
    for name in ("serialize", "serialize_file"):
        if hasattr(module, name):
            replace(module, name, _mapping(getattr(module, name), _of_specs, core))


def _allocated_as_tensors(clone: Callable[..., Any]) -> Callable[..., Any]:
    def managed(self: Any) -> Any:
        interpreted = torch._C._functorch.peek_interpreter_stack() is not None  # what a transform makes has no storage
        if type(self) is not torch.UntypedStorage:
            return clone(self)
        if self.device.type != "cpu" or torch._C._len_torch_dispatch_stack() > 0 or interpreted:
            return clone(self)
        with torch._C.DisableTorchFunction():  # it is no call of the program
            memory = torch.empty(self.nbytes(), dtype=torch.uint8, device="cpu")
        return storage_of(memory).copy_(self, False)

    named_as(managed, torch.UntypedStorage, "clone")
    managed.__doc__ = clone.__doc__
    return managed


def _resident(call: Callable[..., Any], core: Core) -> Callable[..., Any]:
    @functools.wraps(call)
    def calls(self: Any, size: Any) -> Any:
        before = core.kept()
        if size:  # else nothing is copied: FSDP frees so
            core.keep([raw_address(self)], False)
        try:
            return call(self, size)
        finally:
            core.release_kept(before)

    return calls


def watch_storages(core: Core, device: str) -> None:
    """Tell `core` of it, until :func:`vtensor.hooks.patches.restore`."""
    if device == "cuda":
        replace(torch.UntypedStorage, "resize_", _resident(torch.UntypedStorage.resize_, core))
        return
    for owner, name in _AT_ITS_ADDRESS:
        replace(owner, name, _mapping(getattr(owner, name), _of_storages, core))
    for owner, name in _INTO_WHAT_IT_MAKES:
        replace(owner, name, _mapping(getattr(owner, name), _of_storages, core, made=True))
    for owner, name, to_bytes in _OF_SCRIPTS:
        replace(owner, name, _saving_script(getattr(owner, name), getattr(owner, to_bytes), core))
    when_imported(_SAFETENSORS, lambda module: _watch_safetensors(module, core))
    replace(torch.UntypedStorage, "clone", _allocated_as_tensors(torch.UntypedStorage.clone))
