"""Layers that were each measured alone, in microbatches of several sizes: what Harmony's profiler writes down.

Covers: reading such a profile; what is between two sizes; what a pack of such layers needs.
Leaves: measuring.
"""

from __future__ import annotations

import os
import zipfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import LgmError
from ..records.model import Floats, Ints
from .profile import Profile

__all__ = ["Measured", "is_measured", "load_measured"]


@dataclass(frozen=True, eq=False)
class Measured(Profile):
    """k sizes of microbatches, n layers. Between two sizes everything is on a line; beyond the largest nobody knows."""

    sizes: Ints
    """[k] Samples, ascending from 1."""
    forward_seconds: Floats
    """[k, n]"""
    again_seconds: Floats
    """[k, n] Of backward with forward run before it. Infinite: that size did not fit."""
    forward_bytes: Floats
    """[k, n] At the peak, with weights and what the layer is given."""
    again_bytes: Floats
    """[k, n] At the peak, with gradients, too. Infinite: that size did not fit."""
    inputs: Floats
    """[k, n] Bytes that a layer is given."""
    weights: Floats
    states: Floats
    update: Floats

    def __post_init__(self) -> None:
        n, shape = len(self.weights), (len(self.sizes), len(self.weights))
        rows = (self.weights, self.states, self.update)
        tables = (self.forward_seconds, self.again_seconds, self.forward_bytes, self.again_bytes, self.inputs)
        if n == 0 or any(row.shape != (n,) for row in rows) or any(table.shape != shape for table in tables):
            raise LgmError("a measured profile has a column for each layer, and a row for each size of a microbatch")
        if len(self.sizes) == 0 or self.sizes[0] != 1 or (np.diff(self.sizes) <= 0).any():
            raise LgmError("the sizes of microbatches in a measured profile ascend from 1")
        if not all((each >= 0).all() for each in (*rows, *tables)):
            raise LgmError("a number in a measured profile is negative, or none")
        known = (
            *rows,
            self.forward_seconds,
            self.forward_bytes,
            self.inputs,
            self.again_seconds[0],
            self.again_bytes[0],
        )
        if not all(np.isfinite(each).all() for each in known):
            raise LgmError("a measured profile knows all of one sample, and forward of every size")

    def forward(self, samples: int) -> Floats:
        return self._at(self.forward_seconds, samples)

    def backward(self, samples: int) -> Floats:
        again = self._at(self.again_seconds, samples)
        seconds = np.full(len(self), np.inf)
        np.subtract(again, self.forward(samples), out=seconds, where=np.isfinite(again))
        return np.asarray(np.maximum(seconds, 0.0))

    def given(self, samples: int) -> Floats:
        return self._at(self.inputs, samples)

    def bytes_forward(self, first: int, stop: int, samples: int) -> float:
        return self._pack(self.forward_bytes, first, stop, samples)

    def bytes_backward(self, first: int, stop: int, samples: int) -> float:
        return self._pack(self.again_bytes, first, stop, samples)

    def _pack(self, table: Floats, first: int, stop: int, samples: int) -> float:
        """Harmony's rule: what each needs alone; what one hands to the next, with which both were measured, once."""
        alone = self._at(table, samples)[first:stop].sum()
        if not np.isfinite(alone):
            return np.inf
        return float(alone - self.given(samples)[first + 1 : stop].sum())

    def _at(self, table: Floats, samples: int) -> Floats:
        k = int(np.searchsorted(self.sizes, samples))
        if k == len(self.sizes):
            return np.full(len(self), np.inf)
        if self.sizes[k] == samples:
            return np.asarray(table[k])
        low, high = self.sizes[k - 1], self.sizes[k]
        share = (samples - low) / (high - low)
        return np.asarray(table[k - 1] * (1 - share) + table[k] * share)


def is_measured(path: str | os.PathLike[str]) -> bool:
    """Whether a file says that it is such a profile."""
    try:
        with zipfile.ZipFile(path) as archive:
            return "again_seconds.npy" in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


def load_measured(path: str | os.PathLike[str]) -> Measured:
    """From an ``.npz`` with an array for each field of `Measured`.

    Raises
    ------
    LgmError
        If it is none.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays: dict[str, Any] = {each.name: np.asarray(file[each.name], np.float64) for each in fields(Measured)}
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise LgmError(f"{Path(path).name} is not a measured profile: {error}") from None
    sizes = arrays["sizes"]
    if sizes.ndim != 1 or not (sizes == np.clip(np.floor(sizes), 1, 1 << 40)).all():
        raise LgmError(f"{Path(path).name} is not a measured profile: its sizes are not whole numbers of samples")
    return Measured(**{**arrays, "sizes": sizes.astype(np.int64)})
