"""Python-visible doors through which a tensor's address leaves torch: numpy, DLPack, ``data_ptr``, storages.

Covers: telling the core that an address was given away, so that from then on its data is mapped wherever it is,
also for readers the processor does not catch (a ``write(2)`` of the kernel), and is never taken for unchanged.
Leaves: plain reads and writes by instructions; those the fault handler serves (``kernels/fault_handler.h``).
"""

from __future__ import annotations

import faulthandler
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

__all__ = ["close_doors", "open_doors"]

# Tensor.__array__ and the typed storages go through these.
_DOORS = ("numpy", "data_ptr", "untyped_storage", "__dlpack__")
_saved: dict[str, Any] = {}


def _door(original: Callable[..., Any], core: ModuleType) -> Callable[..., Any]:
    address_of = torch._C.TensorBase.data_ptr

    def give_away(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        try:
            address = address_of(self)
        except RuntimeError:
            address = 0  # a tensor without memory (sparse, fake, wrapped): nothing is given away
        if address:
            core.export_address(address)
        return original(self, *args, **kwargs)

    give_away.__name__ = original.__name__
    give_away.__doc__ = original.__doc__
    return give_away


_enable_faulthandler = faulthandler.enable


def _keeping_ours_on_top(enable: Callable[..., None], core: ModuleType) -> Callable[..., None]:
    def enable_and_arm(*args: Any, **kwargs: Any) -> None:
        enable(*args, **kwargs)
        core.arm_fault_handler()  # else it would print a crash each time an absent vTensor is touched

    return enable_and_arm


def open_doors(core: ModuleType) -> None:
    """Replace the doors on ``torch.Tensor`` by ones that tell `core`."""
    for name in _DOORS:
        _saved[name] = vars(torch.Tensor).get(name)
        setattr(torch.Tensor, name, _door(getattr(torch.Tensor, name), core))
    faulthandler.enable = _keeping_ours_on_top(_enable_faulthandler, core)


def close_doors() -> None:
    """Put torch's own methods back."""
    for name, original in _saved.items():
        if original is None:
            delattr(torch.Tensor, name)
        else:
            setattr(torch.Tensor, name, original)
    _saved.clear()
    faulthandler.enable = _enable_faulthandler
