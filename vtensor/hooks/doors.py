"""Python-visible doors through which a tensor's address leaves torch: numpy, DLPack, ``data_ptr``, storages.

Covers: telling the core that an address was given away, so that from then on its data is mapped wherever it is,
also for readers the processor does not catch (a ``write(2)`` of the kernel), and is never taken for unchanged.
Leaves: what a backward written in Python works on (``backwards``); plain reads and writes by instructions, which the
fault handler serves (``kernels/process/fault_handler.h``); taking the doors away again (``patches``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from ..addresses import raw_address
from ..native.core import Core
from .patches import named_as, replace

__all__ = ["open_doors"]

# Tensor.__array__, __cuda_array_interface__ and the typed storages go through these; apply_ and the like work by the
# address. A storage is no door, only its address is: torch.save and copy.deepcopy ask for every one (``storages``), and
# what was given away stays resident for good on a GPU, and on a CPU leaves and comes by no plan.
_DLPACK: list[tuple[Any, str]] = [
    (owner, name)
    for owner in (torch._C, torch.utils.dlpack, torch)
    for name in ("_to_dlpack", "_to_dlpack_versioned", "to_dlpack")
    if hasattr(owner, name)
]
_DOORS: dict[str, list[tuple[Any, str]]] = {
    "cpu": [
        *((torch.Tensor, name) for name in ("numpy", "data_ptr", "__dlpack__", "apply_", "map_", "map2_")),
        *((torch.UntypedStorage, name) for name in ("data_ptr", "byteswap")),
    ],
    "cuda": [(torch.Tensor, "data_ptr"), (torch.Tensor, "__dlpack__"), (torch.UntypedStorage, "data_ptr")],
}
# By this table libraries take addresses from C to C (tvm-ffi and what is built on it).
_TABLE = "__dlpack_c_exchange_api__"
# Packages and modules, each with a dot behind it. They ask which tensors share a storage, by its address, at once
# (shelves may move it later), and read by operations, or as ``storages`` knows.
_COMPARE_STORAGES = (
    *("torch.serialization.", "torch.distributed.fsdp."),
    *("safetensors.", "transformers.", "huggingface_hub.", "accelerate."),
)
# The same of tensors: no package whole of which a part hands addresses to kernels, or keeps them.
_COMPARE_TENSORS = (
    *("torch.nn.modules.rnn.", "torch.distributed.fsdp."),
    *("safetensors.", "huggingface_hub.", "peft.tuners.tuners_utils."),
    *("transformers.modeling_utils.", "transformers.pytorch_utils.", "transformers.trainer."),
)


def _door(owner: Any, name: str, core: Core) -> Callable[..., Any]:
    original = getattr(owner, name)
    passed: tuple[str, ...] = ()
    if name == "data_ptr":
        passed = _COMPARE_STORAGES if owner is torch.UntypedStorage else _COMPARE_TENSORS

    def give_away(self: Any, *args: Any, **kwargs: Any) -> Any:
        if (address := raw_address(self)) and not (passed and _is_of(passed, _asks(sys._getframe(1)))):
            core.export_address(address)
        return original(self, *args, **kwargs)

    named_as(give_away, owner, name)
    give_away.__doc__ = original.__doc__
    return give_away


def _asks(frame: FrameType | None) -> str:
    """The module that asks; typed storages ask for others."""
    while frame is not None and frame.f_globals.get("__name__") == "torch.storage":
        frame = frame.f_back
    return "" if frame is None else str(frame.f_globals.get("__name__", ""))


def _is_of(packages: tuple[str, ...], module: str) -> bool:
    return f"{module}.".startswith(packages)


def open_doors(core: Core, device: str) -> None:
    """Replace the doors on torch's classes by ones that tell `core`, until :func:`vtensor.hooks.patches.restore`."""
    for owner, name in [*_DOORS[device], *_DLPACK]:
        replace(owner, name, _door(owner, name, core))
    if (table := vars(torch.Tensor).get(_TABLE)) is not None:
        replace(torch.Tensor, _TABLE, core.telling_table(table))
