"""Python values with their tensors taken out, and tensors as bytes.

Covers: pickling arguments and results of layers; a tensor's layout; its bytes, such that it is laid out alike
elsewhere, as kernels may compute by layout.
Leaves: carrying them (``mail``).
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Callable, Hashable
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
    def __init__(self, file: Any, name: Callable[[torch.Tensor], Hashable]) -> None:
        super().__init__(file, protocol=5)
        self._name = name

    def persistent_id(self, value: Any) -> Any:
        """What stands for a tensor; None for all else, which is pickled."""
        return self._name(value) if isinstance(value, torch.Tensor) else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, tensor: Callable[[Any], Any]) -> None:
        super().__init__(file)
        self._tensor = tensor

    def persistent_load(self, pid: Any) -> Any:
        """The tensor."""
        return self._tensor(pid)


def pack(value: Any, name: Callable[[torch.Tensor], Hashable], what: str) -> bytes:
    """Pickle a value; `name` says what stands for each tensor in it.

    Raises
    ------
    HarmonyError
        If it cannot be pickled; it says of `what`.
    """
    file = io.BytesIO()
    try:
        _Pickler(file, name).dump(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise HarmonyError(f"{what} cannot go to another process ({error}); name other layers with layers=") from error
    return file.getvalue()


def unpack(data: bytes, tensor: Callable[[Any], Any]) -> Any:
    """The value; `tensor` finds each tensor by what stands for it."""
    return _Unpickler(io.BytesIO(data), tensor).load()
