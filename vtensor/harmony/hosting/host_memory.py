"""Memory of the host for weights that are updated there: this process's own, or one for all processes of a machine.

Covers: getting it, sharing it without a name on any disk, pinning it for a GPU, giving it back when nothing reads it.
Leaves: what lies in it (``hosted``), vTensors that have their content there (``kernels/engine/lending.h``).

Shared memory is a file without a name that lives as long as somebody has it open: nothing is left behind, however the
processes end.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Sequence
from pathlib import Path

import torch

from ... import native
from ...logs import log

__all__ = ["HostMemory", "Shared"]

_ALIGN = 4096  # bytes at which each tensor begins: what a copy engine likes


class Shared:
    """An unnamed file that another process can map, as long as this one has it open."""

    def __init__(self, size: int) -> None:
        self._file = os.memfd_create("vtensor-weights")
        os.truncate(self._file, size)

    @property
    def path(self) -> str:
        """How another process of this machine opens it."""
        return f"/proc/{os.getpid()}/fd/{self._file}"

    def close(self) -> None:
        """Who has mapped it keeps it."""
        os.close(self._file)


class HostMemory:
    """Room for tensors of these layouts, in this order.

    Parameters
    ----------
    tensors
        Dense; each gets a place of the same layout.
    path
        Of memory that processes share; None for memory of this process alone.
    pinned
        Whether a GPU copies to and from it.

    Raises
    ------
    OSError
        If it cannot be had.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], path: str | None = None, *, pinned: bool = False) -> None:
        offsets = _offsets(tensors)
        size = max(offsets[-1], 1)
        if path is None:
            self._memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        else:
            with Path(path).open("r+b") as file:
                self._memory = mmap.mmap(file.fileno(), size)
        whole = torch.frombuffer(self._memory, dtype=torch.uint8)
        self.places = [
            whole[at : at + t.nbytes].view(t.dtype).as_strided(t.shape, t.stride())
            for t, at in zip(tensors, offsets, strict=False)
        ]
        """The places, by tensor."""
        weakref.finalize(self, _give_back, whole, pinned and _pin(whole))

    @staticmethod
    def size_for(tensors: Sequence[torch.Tensor]) -> int:
        """Bytes of it all."""
        return max(_offsets(tensors)[-1], 1)


def _offsets(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Where each begins, and the end."""
    offsets = [0]
    for tensor in tensors:
        offsets.append(offsets[-1] + -(-tensor.nbytes // _ALIGN) * _ALIGN)
    return offsets


def _pin(whole: torch.Tensor) -> bool:
    """Whether the driver agreed; if not, copies are slower, and right."""
    done = int(torch.cuda.cudart().cudaHostRegister(whole.data_ptr(), whole.nbytes, 0)) == 0  # type: ignore[no-untyped-call]
    if not done:
        log.warning("%d MiB of weights in the host's memory could not be pinned: copies are slower", whole.nbytes >> 20)
    return done


def _give_back(whole: torch.Tensor, pinned: bool) -> None:
    """Runs when the owner is gone. While vTensors have their content there, the memory stays."""
    try:
        native.load().take_back(whole.data_ptr(), whole.nbytes)
    except MemoryError:
        _kept.append(whole)
        log.warning(
            "there is no room to bring %d MiB of weights back from the host's memory: they stay there",
            whole.nbytes >> 20,
        )
        return
    if pinned:
        torch.cuda.cudart().cudaHostUnregister(whole.data_ptr())  # type: ignore[no-untyped-call]


_kept: list[torch.Tensor] = []
