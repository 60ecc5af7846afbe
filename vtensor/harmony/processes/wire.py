"""Python values with their tensors taken out, and tensors as bytes.

Covers: pickling arguments and results of layers; a tensor's layout; its bytes, such that it is laid out alike
elsewhere, as kernels may compute by layout.
Leaves: carrying them (``mail``).
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ...errors import HarmonyError

__all__ = ["Layout", "layout_of", "pack", "received", "unpack", "write"]


class Layout(NamedTuple):
    """All of a tensor but its values."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: str
    """Its type: each process has one of its own."""

    def kept(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shape and strides of what is carried: expanded dimensions once, holes left out."""
        shape = tuple(1 if step == 0 else size for size, step in zip(self.shape, self.stride, strict=True))
        order = sorted(range(len(shape)), key=lambda k: (self.stride[k], -k))
        at, dense = 1, True
        for k in order:
            if shape[k] != 1:
                dense &= self.stride[k] == at
                at *= shape[k]
        if dense:
            return shape, tuple(max(step, 1) for step in self.stride)
        strides = [math.prod(shape[k + 1 :]) for k in range(len(shape))]
        return shape, tuple(strides)

    def spread(self) -> tuple[int, ...]:
        """Strides elsewhere: with the holes, unless elements lie in each other's places."""
        shape, packed = self.kept()
        reach = 1
        for k in sorted(range(len(shape)), key=lambda k: self.stride[k]):
            if shape[k] != 1:
                if self.stride[k] < reach:
                    return packed
                reach += self.stride[k] * (shape[k] - 1)
        return tuple(max(step, 1) for step in self.stride)

    @property
    def nbytes(self) -> int:
        """Bytes of what is carried."""
        return math.prod(self.kept()[0]) * self.dtype.itemsize


def layout_of(tensor: torch.Tensor) -> Layout:
    """The layout of a tensor with strides.

    Raises
    ------
    HarmonyError
        If it is a sparse one.
    """
    if tensor.layout != torch.strided:
        raise HarmonyError(f"a tensor of layout {tensor.layout} cannot go from process to process")
    return Layout(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device.type)


def write(tensor: torch.Tensor, buffer: torch.Tensor) -> None:
    """Put the tensor's bytes at the beginning of a buffer of bytes."""
    layout = layout_of(tensor)
    shape, _ = layout.kept()
    source = tensor.detach().as_strided(shape, layout.stride)
    _seen(buffer, layout).copy_(source.resolve_conj().resolve_neg())


def received(layout: Layout, buffer: torch.Tensor) -> torch.Tensor:
    """A tensor of this layout, of the bytes in the buffer."""
    shape, _ = layout.kept()
    tensor = torch.empty_strided(shape, layout.spread(), dtype=layout.dtype, device=layout.device)
    tensor.copy_(_seen(buffer, layout))
    return tensor if shape == layout.shape else tensor.expand(layout.shape)


def _seen(buffer: torch.Tensor, layout: Layout) -> torch.Tensor:
    return buffer[: layout.nbytes].view(layout.dtype).as_strided(*layout.kept())


class _Pickler(pickle.Pickler):
    def __init__(self, file: Any, given: Sequence[torch.Tensor]) -> None:
        super().__init__(file, protocol=5)
        self._given = {id(tensor): index for index, tensor in enumerate(given)}
        self._places: dict[int, int] = {}
        self.found: list[torch.Tensor] = []

    def persistent_id(self, value: Any) -> Any:
        """What stands for a tensor: whether it is one of those given, and which; None for all else."""
        if not isinstance(value, torch.Tensor):
            return None
        if id(value) in self._given:
            return True, self._given[id(value)]
        if id(value) not in self._places:
            self._places[id(value)] = len(self.found)
            self.found.append(value)
        return False, self._places[id(value)]


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, found: Sequence[torch.Tensor], given: Sequence[torch.Tensor]) -> None:
        super().__init__(file)
        self._tensors = found, given

    def persistent_load(self, pid: Any) -> Any:
        """The tensor."""
        is_given, index = pid
        return self._tensors[is_given][index]


def pack(value: Any, what: str, given: Sequence[torch.Tensor] = ()) -> tuple[bytes, list[torch.Tensor]]:
    """Pickle a value without its tensors; and those, each once, but for those that are `given`.

    Raises
    ------
    HarmonyError
        If it cannot be pickled; it says of `what`.
    """
    file = io.BytesIO()
    pickler = _Pickler(file, given)
    try:
        pickler.dump(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise HarmonyError(f"{what} cannot go to another process ({error}); name other layers with layers=") from error
    return file.getvalue(), pickler.found


def unpack(data: bytes, found: Sequence[torch.Tensor], given: Sequence[torch.Tensor] = ()) -> Any:
    """The value, with these tensors for those that :func:`pack` returned, and for those it was given."""
    return _Unpickler(io.BytesIO(data), found, given).load()
