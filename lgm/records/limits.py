"""What no machine has: the limits of sizes, counts and durations, and the checks that values are of a kind and within.

Covers: limits with their reasons; whole numbers, numbers, names, rows of whole numbers.
Leaves: which value has which limits, and whether values agree with each other (``model``).

A file may hold anything. Whoever computes with what passed here need not ask again whether a sum fits, a list can be
made, or a loop comes to its end.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import LgmError

__all__ = [
    "LONGEST_SECONDS",
    "MOST_BYTES",
    "MOST_CHUNKS",
    "MOST_ENTRIES",
    "MOST_OPERATIONS",
    "MOST_SPEED",
    "are_sizes",
    "check_names",
    "check_number",
    "check_rows",
    "check_whole",
    "whole_numbers",
]

MOST_BYTES = 1 << 60
"""An exbibyte: of a chunk, of all tensors, of all that is used in an iteration. Sums of a few such fit int64."""
MOST_CHUNKS = 1 << 26
"""Of all tensors of an iteration: 128 TiB in chunks of 2 MiB, which is what a process can address. ``validate`` keeps a
byte for each that is alive."""
MOST_OPERATIONS = 1 << 20
"""The core records no longer iterations (``kMostRows`` in ``kernels/iteration/recorder.h``)."""
MOST_ENTRIES = 1 << 24
"""Of any array: sixteen tensors or uses for each of the most operations."""
LONGEST_SECONDS = 366 * 24 * 3600
"""A year, of an iteration or anything in it. In nanoseconds it fits int64 two hundred times."""
MOST_SPEED = 1e18
"""Bytes a second: an exabyte. The least is one."""


def check_whole(what: str, value: Any, low: int, high: int) -> int:
    """The number, Python's own; raises LgmError if `value` is no whole number in [low, high]."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise LgmError(f"{what} must be a whole number, not {value!r:.40}")
    if not low <= value <= high:
        raise LgmError(f"{what} is {value!r:.40}, outside of {low} to {high}")
    return int(value)


def check_number(what: str, value: Any, low: float, high: float) -> float:
    """The number, Python's own; raises LgmError if `value` is no number in [low, high]."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise LgmError(f"{what} must be a number, not {value!r:.40}")
    if not low <= value <= high:  # true of nan
        raise LgmError(f"{what} is {value!r:.40}, outside of {low:g} to {high:g}")
    return int(value) if isinstance(value, (int, np.integer)) else float(value)


def check_names(what: str, values: Iterable[Any]) -> None:
    """Raise LgmError if one of `values` is no text of one line: they become part of messages and tables."""
    for value in values:
        if not isinstance(value, str) or not value.isprintable():
            raise LgmError(f"{what} must be text that can be printed, not {value!r:.40}")


def whole_numbers(what: str, values: Any) -> NDArray[np.int64]:
    """`values` as one row of int64; raises LgmError if they are something else, or too many."""
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in ("iu" if array.size else "iuf"):
        shape = " x ".join(map(str, array.shape)) or "one value"
        raise LgmError(f"{what} must be a row of whole numbers, not {shape} of {array.dtype.name}")
    if len(array) > MOST_ENTRIES:
        raise LgmError(f"{what} has {len(array)} entries, more than {MOST_ENTRIES}")
    if array.dtype.kind == "u" and array.size and array.max() > np.iinfo(np.int64).max:
        raise LgmError(f"{what} holds {array.max()}, which int64 does not")
    return np.ascontiguousarray(array, dtype=np.int64)


def check_rows(owner: str, rows: Iterable[tuple[str, NDArray[np.int64], int, int, int]]) -> None:
    """Raise LgmError if an array (by name) has not so many entries, or holds what is not in [low, high)."""
    for name, values, length, low, high in rows:
        if len(values) != length:
            raise LgmError(f"{owner}: {name} has {len(values)} entries instead of {length}")
        if len(values) and not low <= values.min() <= values.max() < high:
            worst = values.min() if values.min() < low else values.max()
            raise LgmError(f"{owner}: {name} holds {worst}, outside of {low} to {high - 1}")


def are_sizes(*rows: NDArray[np.float64]) -> bool:
    """Whether these are rows of as many numbers, at least one, none of them negative."""
    return all(
        row.shape == rows[0].shape and row.ndim == 1 and len(row) > 0 and np.isfinite(row).all() and (row >= 0).all()
        for row in rows
    )
