"""A batch in parts.

Covers: cutting nested batches along their first dimension; what a loss must be, and their sum.
Leaves: which microbatch runs (``weave``), its random numbers (``generators``).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import torch

from ..errors import ConfigError

__all__ = ["cut", "scalar", "tensors_of", "total"]


def cut(batch: Any, count: int) -> list[Any]:
    """Cut into parts of as many rows each; the first are longer by one where it does not come out even.

    Tensors in lists, tuples, named tuples and mappings are cut along their first dimension; tensors without one, and
    all that are no tensors, go to every part as they are.

    Raises
    ------
    ConfigError
        If there is no tensor to cut, their lengths differ, or there are fewer rows than parts.
    """
    lengths = {len(tensor) for tensor in tensors_of(batch) if tensor.dim()}
    if not lengths:
        raise ConfigError(
            "there is no tensor in this batch to cut into microbatches; pass split=, which returns a list"
        )
    if len(lengths) > 1:
        raise ConfigError(
            f"the tensors of this batch have {', '.join(map(str, sorted(lengths)))} rows: they cannot be cut into "
            "microbatches alike; pass split=, which returns a list of microbatches"
        )
    if (rows := lengths.pop()) < count:
        raise ConfigError(f"a batch of {rows} rows cannot be cut into {count} microbatches; pass microbatches={rows}")
    return [_part(batch, k, count) for k in range(count)]


def tensors_of(value: Any) -> list[torch.Tensor]:
    """Tensors in lists, tuples and mappings, such as the outputs of transformers."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    return [tensor for item in value for tensor in tensors_of(item)] if isinstance(value, list | tuple) else []


def _part(value: Any, index: int, count: int) -> Any:
    if isinstance(value, torch.Tensor):
        if not value.dim():
            return value
        part = value.tensor_split(count)[index]
        return part if part.requires_grad else part.data  # may be overwritten without the others noticing
    if isinstance(value, Mapping):
        # Entries may be attributes, too, as those of transformers' BatchEncoding.
        parts = copy.copy(value) if isinstance(value, MutableMapping) else {}
        parts.update({key: _part(item, index, count) for key, item in value.items()})
        return parts
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_part(item, index, count) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(_part(item, index, count) for item in value)
    return value


def scalar(value: Any) -> torch.Tensor:
    """What a loss returned.

    Raises
    ------
    ConfigError
        If nothing can go backward from it.
    """
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value
    what = f"one of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
    raise ConfigError(f"loss= must return a scalar tensor, and returned {what}")


def total(losses: Sequence[torch.Tensor]) -> torch.Tensor:
    """Their sum, in their order."""
    result = losses[0].clone()
    for value in losses[1:]:
        result += value
    return result
