"""Python-visible doors through which a tensor's address leaves torch: numpy, DLPack, ``data_ptr``, storages.

Covers: telling the core that an address was given away, so that from then on its data is mapped wherever it is,
also for readers the processor does not catch (a ``write(2)`` of the kernel), and is never taken for unchanged; and,
on a GPU, what a backward written in Python works on.
Leaves: plain reads and writes by instructions; those the fault handler serves (``kernels/process/fault_handler.h``);
taking the doors away again (``patches``).
"""

from __future__ import annotations

import faulthandler
import functools
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

import torch

from ..addresses import raw_address
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


def _door(owner: Any, name: str, core: ModuleType) -> Callable[..., Any]:
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


def _keeping_ours_on_top(change: Callable[..., Any], core: ModuleType) -> Callable[..., Any]:
    @functools.wraps(change)
    def change_and_arm(*args: Any, **kwargs: Any) -> Any:
        try:
            return change(*args, **kwargs)
        finally:  # else it would print a crash each time an absent vTensor is touched, or that would be tried for ever
            if change.__name__ == "enable":
                core.note_pythons_handler()
            core.arm_fault_handler()

    return change_and_arm


class _Backward(threading.local):
    """The innermost backward written in Python that runs in this thread."""

    runs = False
    unseen = False
    """It may write what it is given by kernels that nobody sees."""


def _addresses(values: Any) -> list[int]:
    """Of the tensors among `values`, which may be in lists."""
    found = []
    for value in values:
        if isinstance(value, list):
            found += _addresses(value)
        elif isinstance(value, torch.Tensor):
            found.append(raw_address(value))
    return found


def _watch_backwards(core: ModuleType) -> None:
    """A backward written in Python may hand its tensors to kernels that nobody sees (forwards are the observer's).

    So nothing that is made in it is recomputed, and its gradients and what it takes from ``ctx.saved_tensors`` may be
    something else afterwards. On a device where nothing faults they are moreover resident until it returns.
    """
    owner: Any = torch.autograd.function.BackwardCFunction
    unpacked = owner.saved_tensors
    here, ordered = _Backward(), core.ordered()

    def keeping(plain: Callable[..., Any]) -> Callable[..., Any]:
        def apply(self: Any, *args: Any) -> Any:
            before, closed, outer = core.kept(), core.close_eyes(), (here.runs, here.unseen)
            here.runs, here.unseen = True, core.writes_unseen(type(self).__name__.removesuffix("Backward"))
            try:
                if ordered or here.unseen:
                    core.keep(_addresses(args), here.unseen)
                return plain(self, *args)
            finally:
                here.runs, here.unseen = outer
                core.release_kept(before)
                if closed:
                    core.open_eyes()

        return apply

    def saved_tensors(self: Any) -> Any:
        values = unpacked.__get__(self)
        if here.unseen or (ordered and here.runs):
            core.keep(_addresses(values), here.unseen)
        return values

    for name in ("apply", "apply_boxed"):  # torch 2.13 has the second
        if hasattr(owner, name):
            replace(owner, name, keeping(getattr(owner, name)))
    replace(owner, "saved_tensors", property(saved_tensors))


def open_doors(core: ModuleType, device: str) -> None:
    """Replace the doors on torch's classes by ones that tell `core`, until :func:`vtensor.hooks.patches.restore`."""
    for owner, name in [*_DOORS[device], *_DLPACK]:
        replace(owner, name, _door(owner, name, core))
    if (table := vars(torch.Tensor).get(_TABLE)) is not None:
        replace(torch.Tensor, _TABLE, core.telling_table(table))
    _watch_backwards(core)
    if faulthandler.is_enabled():
        core.note_pythons_handler()
    for name in ("enable", "disable"):
        replace(faulthandler, name, _keeping_ours_on_top(getattr(faulthandler, name), core))
    replace(signal, "signal", _keeping_ours_on_top(signal.signal, core))
