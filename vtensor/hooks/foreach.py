"""Cuts multi-tensor operations over lists larger than the budget into lists that fit.

Covers: ``torch._foreach_*`` and ``torch._fused_*``, which optimizers with ``foreach=True`` or ``fused=True`` call once
for all parameters. One call pins its whole lists; cut, each part does the same work on its tensors, in the same order,
so the result is the same bit for bit.
Leaves: calls from C++ (none in torch's optimizers); there the core borrows what does not fit; putting torch's own
functions back (``patches``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from ..native.core import Core
from .imports import when_imported
from .patches import named_as, replace

__all__ = ["cut", "cut_foreach"]

_SCALARS = ("_foreach_norm", "_foreach_max", "_foreach_powsum")  # what they make of each tensor is a number


def cut(sizes: list[int], limit: int) -> list[slice]:
    """Consecutive slices of `sizes`, each of at most `limit` in all, or of one element.

    >>> cut([4, 4, 4, 9, 1], limit=8)
    [slice(0, 2, None), slice(2, 3, None), slice(3, 4, None), slice(4, 5, None)]
    """
    slices = []
    start = total = 0
    for index, size in enumerate(sizes):
        if index > start and total + size > limit:
            slices.append(slice(start, index))
            start, total = index, 0
        total += size
    slices.append(slice(start, len(sizes)))
    return slices


def _bytes(value: Any) -> int:
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) and not value.is_sparse else 0


def _part(value: Any, part: slice, length: int) -> Any:
    """Of a list of so many, or of a tensor with one number for each."""
    several = value.dim() == 1 if isinstance(value, torch.Tensor) else isinstance(value, (list, tuple))
    return value[part] if several and len(value) == length else value


def _joined(results: list[Any]) -> Any:
    first = results[0]
    if isinstance(first, (list, tuple)) and first and isinstance(first[0], (list, tuple)):
        return type(first)(_joined(list(parts)) for parts in zip(*results, strict=True))
    if isinstance(first, (list, tuple)):
        return type(first)(item for part in results for item in part)
    return first


def _cutting(original: Callable[..., Any], core: Core, limit: Callable[[], int]) -> Callable[..., Any]:
    name = original.__name__
    makes = not name.endswith("_") and name not in _SCALARS

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not args or not isinstance(args[0], (list, tuple)) or len(args[0]) < 2 or core.fits():
            return original(*args, **kwargs)
        length = len(args[0])
        with torch._C.DisableTorchFunction():  # these are no calls of the program
            lists = [a for a in (*args, *kwargs.values()) if isinstance(a, (list, tuple)) and len(a) == length]
            sizes = [makes * _bytes(args[0][i]) + sum(_bytes(a[i]) for a in lists) for i in range(length)]
            parts = cut(sizes, limit())
            calls = [
                ([_part(a, part, length) for a in args], {k: _part(v, part, length) for k, v in kwargs.items()})
                for part in parts
            ]
        if len(parts) == 1:
            return original(*args, **kwargs)
        return _joined([original(*some, **named) for some, named in calls])

    return call


def cut_foreach(core: Core, limit: Callable[[], int]) -> None:
    """Wrap every multi-tensor operation of ``torch``, until :func:`vtensor.hooks.patches.restore`.

    `limit` gives the bytes one call may use.
    """
    calls = {}
    for name in dir(torch):
        if name.startswith(("_foreach_", "_fused_")):
            calls[getattr(torch, name)] = call = _known_to_scripts(name, getattr(torch, name), core, limit)
            replace(torch, name, call)
    when_imported("torch._dynamo.trace_rules", lambda module: _tell_compiler(module, calls))


def _tell_compiler(rules: ModuleType, calls: dict[Any, Any]) -> None:
    """``torch.compile`` knows torch's functions, too, by a table made of what it finds when it first needs one."""
    if (table_of := getattr(rules, "get_torch_obj_rule_map", None)) is None:
        return

    told = None

    def with_both() -> Any:
        nonlocal told
        if (table := table_of()) is not told:
            for original, call in calls.items():
                if (rule := table.get(original, table.get(call))) is not None:
                    table[original] = table[call] = rule
            told = table
        return table

    with_both.cache_clear = table_of.cache_clear  # type: ignore[attr-defined]
    replace(rules, "get_torch_obj_rule_map", with_both)


@functools.cache  # one for good: torch.jit knows functions by where they are
def _known_to_scripts(
    name: str, original: Callable[..., Any], core: Core, limit: Callable[[], int]
) -> Callable[..., Any]:
    """Cuts, is what ``torch.jit.script`` takes for torch's own, and what pickle finds under its name."""
    call = _cutting(original, core, limit)
    named_as(call, torch, name)
    if (register := getattr(torch.jit._builtins, "_register_builtin", None)) is not None:
        register(call, f"aten::{name}")
    return call
