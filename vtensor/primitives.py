"""The three primitives of the virtualization layer, and where a tensor is.

Source: split, salloc and merge are those of the vTensor paper (JCST 40(6), 2025); here every piece has the fixed size
of a chunk.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import get_args

import torch

from . import native
from .addresses import address_of, storage_of
from .errors import ConfigError
from .native.core import State
from .session.lifecycle import active_config, active_core, is_kept_off
from .settings.sizes import parse_bytes
from .settings.which_device import which_device

__all__ = ["Residency", "State", "VTensor", "merge", "residency", "salloc", "split"]


@dataclass(frozen=True, slots=True)
class VTensor:
    """One chunk-sized piece of a tensor's storage, as it was when asked."""

    index: int
    address: int
    """Virtual address of its first byte; it never changes while the tensor lives, but for what an optimizer keeps: see
    ``vtensor/session/shelves.py``."""
    nbytes: int
    """Bytes of the tensor in it; less than a chunk in the last piece, and in the first of one that shares it."""
    state: State
    clean: bool
    """Resident, and its host copy is still valid: it would leave for free."""
    took_chunk_of: int | None
    """Swapped-by edge: address of the vTensor whose leaving freed this one's chunk; None if a chunk was free."""


@dataclass(frozen=True, slots=True)
class Residency:
    """How many vTensors of a tensor are in which state. An unmanaged tensor has none."""

    chunks: int
    resident: int
    leaving: int
    absent: int
    arriving: int
    borrowed: int
    dropped: int
    """Nowhere: they will be recomputed when they are needed."""
    clean: int

    @property
    def managed(self) -> bool:
        """Also of what outlived its session, which no budget counts any more."""
        return self.chunks > 0


def split(tensor: torch.Tensor) -> list[VTensor]:
    """The vTensors of the tensor's storage, in order. No data moves: a managed tensor is born split.

    Raises
    ------
    ConfigError
        If the tensor is not managed: made before ``enable``, smaller than ``min_size``, on another device, or in
        memory that is not torch's own (of NumPy, shared, pinned).
    TypeError
        If it is no tensor.
    """
    pieces = _pieces(tensor)
    if not pieces:
        raise ConfigError(
            "the tensor is not managed by vtensor: it was made before enable(), is smaller than min_size, lies on "
            "another device, in memory that is not torch's own (of NumPy, shared, pinned), or in that of other tensors "
            "(sparse). A copy made now (tensor.clone()) is managed if it is large enough"
        )
    return pieces


def salloc(nbytes: int | str) -> torch.Tensor:
    """Allocate `nbytes` backed by chunks, swapping out exactly as many vTensors of others as are missing.

    Parameters
    ----------
    nbytes
        Bytes, or a text such as ``"4MiB"``.

    Returns
    -------
    torch.Tensor
        One-dimensional, ``uint8``, content unspecified, managed whatever its size. ``split`` of it shows from which
        vTensors its chunks were taken. While ``VTENSOR_DISABLE=1`` keeps vtensor off, memory of torch's own.

    Raises
    ------
    ConfigError
        If `nbytes` is no size.
    NotEnabledError
        If vtensor is not enabled.
    torch.OutOfMemoryError
        If the chunks cannot be had; nothing changed then.
    """
    size = parse_bytes(nbytes, "nbytes")
    if is_kept_off():
        return torch.empty(size, dtype=torch.uint8, device=which_device("auto"))
    core = active_core()
    core.manage("all")
    try:
        return torch.empty(size, dtype=torch.uint8, device=active_config().device)
    finally:
        core.manage("large")


def merge(tensor: torch.Tensor) -> torch.Tensor:
    """Bring every vTensor of the tensor back, at its old address, and return the tensor.

    What does not fit the budget is mapped in place in the host store (borrowed). Nothing keeps the pieces from leaving
    again later. An unmanaged tensor is whole anyway, and so is any once vtensor is disabled.

    Raises
    ------
    TypeError
        If it is no tensor.
    """
    if (address := _begin(tensor)) is not None:
        native.load().merge(address)
    return tensor


def residency(tensor: torch.Tensor) -> Residency:
    """Where the tensor's storage is now. Moves nothing.

    Raises
    ------
    TypeError
        If it is no tensor.
    """
    pieces = _pieces(tensor)
    states = Counter(piece.state for piece in pieces)
    each = {state: states[state] for state in get_args(State)}
    return Residency(chunks=len(pieces), clean=sum(piece.clean for piece in pieces), **each)


def _begin(tensor: torch.Tensor) -> int | None:
    """Where its storage begins; None if it has none of its own (sparse)."""
    try:
        return address_of(tensor)
    except NotImplementedError:
        return None


def _pieces(tensor: torch.Tensor) -> list[VTensor]:
    """Those of its storage; the first and the last may hold parts of others' too (``session.shelves``)."""
    if (begin := _begin(tensor)) is None:
        return []
    end = begin + storage_of(tensor).nbytes()
    pieces: list[VTensor] = []
    for address, nbytes, state, clean, took_from in native.load().pieces(begin):
        first, last = max(address, begin), min(address + nbytes, end)
        if first < last:
            pieces.append(VTensor(len(pieces), first, last - first, state, clean, took_from or None))
    return pieces
