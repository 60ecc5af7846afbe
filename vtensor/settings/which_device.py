"""Which device a session is for: what was asked for, and what torch sees here.

Covers: ``"auto"``, the GPU of a process that has chosen none yet. Leaves: starting there (``vtensor/devices/``), how
much memory there is (``available``).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal, cast

from ..errors import ConfigError, UnsupportedDeviceError
from .options import Device

if TYPE_CHECKING:
    import torch

__all__ = ["choose_gpu", "named", "which_device"]


def named(device: Device | torch.device | None) -> Device | None:
    """The word for a ``torch.device``, or for its name with a number; anything else as it is.

    Raises
    ------
    ConfigError
        For another GPU than the current one: which one is managed is torch's to say.
    """
    import torch

    kind, _, number = str(device).partition(":")
    if kind == "cuda" and number and not (torch.cuda.is_available() and int(number) == torch.cuda.current_device()):
        raise ConfigError(
            f"device={str(device)!r} is not the current GPU: call torch.cuda.set_device({number}) first, or pass "
            "device='cuda' for the current one"
        )
    return cast(Device, kind) if kind in ("cpu", "cuda") else cast(Device | None, device)


def which_device(asked: Device) -> Literal["cpu", "cuda"]:
    """``"cpu"`` or ``"cuda"``; raises UnsupportedDeviceError if there is no GPU where one is asked for."""
    if asked == "cpu":
        return "cpu"
    import torch

    seen = torch.cuda.is_available()
    if asked == "cuda" and not seen:
        raise UnsupportedDeviceError(
            "device='cuda': torch sees no GPU here (torch.cuda.is_available() is False); 'vtensor doctor' says what is "
            "missing, and device='cpu' manages CPU tensors"
        )
    return "cuda" if seen else "cpu"


def choose_gpu() -> tuple[int, int]:
    """The CUDA device to manage, which is the current one from now on, and its bytes of memory.

    Where a process of torchrun has chosen none yet, the one of its rank is current from now on: all would begin on the
    first, and manage that.
    """
    import torch

    ordinal = torch.cuda.current_device()
    rank = os.environ.get("LOCAL_RANK", "")
    if ordinal == 0 and rank.isdecimal() and 0 < int(rank) < torch.cuda.device_count():
        ordinal = int(rank)
        torch.cuda.set_device(ordinal)
    return ordinal, torch.cuda.get_device_properties(ordinal).total_memory
