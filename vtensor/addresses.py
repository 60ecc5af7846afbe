"""Where tensors lie, asked for without giving it away.

Covers: addresses and storages of tensors, past what is put around torch's functions that ask for them.
Leaves: what is done when the program asks (``hooks.doors``).
"""

from __future__ import annotations

import sys
from typing import Any

import torch

__all__ = ["address_of", "raw_address", "storage_of"]

# Whose functions nothing is put around.
_TENSOR: Any = torch._C.TensorBase
_STORAGE: Any = torch._C.StorageBase


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage:
    """A tensor's storage; asking for it so does not count as giving its address away."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"a tensor is needed, not {type(tensor).__name__}")
    storage: torch.UntypedStorage = _TENSOR.untyped_storage(tensor)
    return storage


def address_of(tensor: torch.Tensor) -> int:
    """Where a tensor's storage begins; neither does this."""
    return int(_STORAGE.data_ptr(storage_of(tensor)))


def raw_address(value: Any) -> int:
    """Of a tensor or storage; 0 if it has no memory (fake, sparse, wrapped)."""
    if _is_fake(value):
        return 0
    owner = _TENSOR if isinstance(value, torch.Tensor) else _STORAGE
    try:
        with torch._C.DisableTorchFunction():  # a subclass, or a mode, would take it for a call of the program
            return int(owner.data_ptr(value))
    except RuntimeError:
        return 0


def _is_fake(value: Any) -> bool:
    """Whether it has a shape only (``torch.compile``, FSDP): torch warns when its address is asked for."""
    fakes = sys.modules.get("torch._subclasses.fake_tensor")
    return fakes is not None and isinstance(value, fakes.FakeTensor)
