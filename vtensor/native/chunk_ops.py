"""Kernels on a GPU's bytes, through CuPy: many small pieces packed for one copy, patterns written and checked.

Covers: loading ``kernels/cuda/chunk_ops.cu``, compiled by CuPy for the GPU at hand at its first use, and launching it
on CuPy's current stream.
Leaves: whether packing pays: ``make gpu-check PART=costs`` measures it. Sessions move whole chunks and use none of it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from .library import sources_dir

__all__ = ["NAMES", "count_wrong", "fill", "gather", "scatter", "source"]

NAMES = ("gather", "scatter", "fill", "verify")
THREADS = 256
BLOCKS = 1024  # more than any GPU runs at once; kernels stride over what is left


def source() -> str:
    """The kernels, in CUDA C++."""
    return (sources_dir() / "cuda" / "chunk_ops.cu").read_text()


@functools.cache
def _kernel(name: str) -> Any:
    import cupy

    return cupy.RawModule(code=source(), options=("-std=c++17",)).get_function(name)


def _launch(name: str, blocks: int, *arguments: Any) -> None:
    _kernel(name)((max(min(blocks, BLOCKS), 1),), (THREADS,), arguments)


def _move(name: str, pieces: Sequence[tuple[int, int]], packed: Any) -> None:
    import cupy

    table = np.zeros((len(pieces), 3), np.uint64)  # struct Piece
    if pieces:
        table[:, [0, 2]] = pieces
        table[1:, 1] = np.cumsum(table[:-1, 2])
    needed = int(table[:, 2].sum())
    if packed.nbytes < needed:
        raise ValueError(f"{len(pieces)} pieces have {needed} bytes; the packed array has room for {packed.nbytes}")
    _launch(name, len(pieces), cupy.asarray(table), np.uint64(len(pieces)), packed)


def gather(pieces: Sequence[tuple[int, int]], packed: Any) -> None:
    """Copy pieces, each (device address, bytes), one after the other into `packed`, a CuPy array of bytes.

    Raises
    ------
    ValueError
        If `packed` is too small.
    """
    _move("gather", pieces, packed)


def scatter(pieces: Sequence[tuple[int, int]], packed: Any) -> None:
    """The way back of :func:`gather`: the same pieces get what `packed` holds."""
    _move("scatter", pieces, packed)


def fill(words: Any, seed: int) -> None:
    """Write the pattern of `seed` into a CuPy array of unsigned 64-bit words."""
    _launch("fill", -(-words.size // THREADS), words, np.uint64(words.size), np.uint64(seed))


def count_wrong(words: Any, seed: int) -> int:
    """How many of these words are not the pattern's. Waits for the GPU."""
    import cupy

    wrong = cupy.zeros(1, cupy.uint64)
    _launch("verify", -(-words.size // THREADS), words, np.uint64(words.size), np.uint64(seed), wrong)
    return int(wrong[0])
