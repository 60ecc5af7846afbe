"""Kernels that a program puts in the place of torch's own, and takes away.

Covers: those of ``torch.library.Library("aten", "IMPL")``, and those in libraries that are loaded
(``torch.ops.load_library``, ``torch.utils.cpp_extension``, ``import`` of a module that is itself linked to torch): what
was made by one kernel is not recomputed by another, and operators are looked at anew.
Leaves: kernels of operators of the program's own, none of which runs again (``kernels/torch/torch_traits.cpp``).
"""

from __future__ import annotations

import functools
import mmap
from collections.abc import Callable
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from pathlib import Path
from typing import Any

import torch

from ..native.core import Core
from .imports import when_imported
from .patches import replace

__all__ = ["watch_kernels"]

_EXTENSIONS = "torch.utils.cpp_extension"


def _changing(change: Callable[..., Any], core: Core, concerns: Callable[..., bool]) -> Callable[..., Any]:
    @functools.wraps(change)
    def changes(*args: Any, **kwargs: Any) -> Any:
        if not concerns(*args):
            return change(*args, **kwargs)
        changing = core.KernelsChange()
        try:
            return change(*args, **kwargs)
        finally:
            changing.end()

    return changes


def _is_of_torchs_own(library: Any, *_: Any) -> bool:
    return bool(library.ns == "aten")


def _had_torchs_own(_all: Any, of_library: set[str], *_: Any) -> bool:
    return any(name.startswith("aten/") for name in of_library)


def _may_be_of_torchs_own(*_: Any) -> bool:
    return True


def _may_be_of_what_it_loads(_loader: Any, spec: ModuleSpec) -> bool:
    """Whether the module's file names torch's core, as all do that are linked to it, but not by a library of theirs."""
    try:
        with Path(str(spec.origin)).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(b"libc10") >= 0
    except (OSError, ValueError):  # no such file, or an empty one: the import says so
        return False


def watch_kernels(core: Core) -> None:
    """Tell `core` before and after, until :func:`vtensor.hooks.patches.restore`."""

    def watch(owner: Any, name: str, concerns: Callable[..., bool]) -> None:
        if hasattr(owner, name):
            replace(owner, name, _changing(getattr(owner, name), core, concerns))

    for name in ("impl", "_destroy"):
        watch(torch.library.Library, name, _is_of_torchs_own)
    watch(torch.library, "_del_library", _had_torchs_own)  # what the garbage collector does
    watch(type(torch.ops), "load_library", _may_be_of_torchs_own)
    watch(ExtensionFileLoader, "create_module", _may_be_of_what_it_loads)
    when_imported(_EXTENSIONS, lambda module: watch(module, "_import_module_from_library", _may_be_of_torchs_own))
