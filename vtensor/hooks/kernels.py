"""Kernels that a program puts in the place of torch's own, and takes away (``torch.library.Library("aten", "IMPL")``).

Covers: what was made by one kernel is not made again by another, and operators are looked at anew.
Leaves: kernels of operators of the program's own, none of which runs again (``kernels/torch/torch_traits.cpp``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from .patches import replace

__all__ = ["watch_kernels"]


def _changing(change: Callable[..., Any], concerns: Callable[..., bool], core: ModuleType) -> Callable[..., Any]:
    @functools.wraps(change)
    def changes(*args: Any, **kwargs: Any) -> Any:
        if not concerns(*args):
            return change(*args, **kwargs)
        core.kernels_change()
        try:
            return change(*args, **kwargs)
        finally:
            core.kernels_change()

    return changes


def _is_of_torchs_own(library: Any, *_: Any) -> bool:
    return bool(library.ns == "aten")


def _had_torchs_own(_all: Any, of_library: set[str], *_: Any) -> bool:
    return any(name.startswith("aten/") for name in of_library)


def watch_kernels(core: ModuleType) -> None:
    """Tell `core` before and after, until :func:`vtensor.hooks.patches.restore`."""
    library: Any = torch.library
    for name in ("impl", "_destroy"):
        replace(library.Library, name, _changing(getattr(library.Library, name), _is_of_torchs_own, core))
    if hasattr(library, "_del_library"):  # what the garbage collector does
        replace(library, "_del_library", _changing(library._del_library, _had_torchs_own, core))
