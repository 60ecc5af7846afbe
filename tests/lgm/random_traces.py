"""Random iterations: small and lawless for correctness, large and shaped like training for speed."""

from __future__ import annotations

import numpy as np
import pytest

from lgm import Trace

CHUNK = 1024


def first_of(most: int, quick: int) -> list[object]:
    """The seeds up to `most`, those from `quick` on in the long profile."""
    return [seed if seed < quick else pytest.param(seed, marks=pytest.mark.long) for seed in range(most)]


def build(
    ops: int, tensors: list[tuple[int, int, int]], uses: list[tuple[int, int, int, int, int]], **fields: object
) -> Trace:
    """A trace from (bytes, born, died) and (op, tensor, first, last, write) tuples."""
    uses = sorted(uses, key=lambda u: u[0])
    columns = list(zip(*uses, strict=True)) if uses else [[]] * 5
    given = {
        "names": ("op",),
        "op_name": [0] * ops,
        "op_ns": [1_000_000] * ops,
        "op_last": list(range(ops)),
        **fields,
    }
    sizes, born, died = zip(*tensors, strict=True)
    names = ("op", "tensor", "first", "last", "write")
    given |= {f"use_{name}": column for name, column in zip(names, columns, strict=True)}
    return Trace(chunk_bytes=CHUNK, tensor_bytes=sizes, tensor_born=born, tensor_died=died, **given)  # type: ignore[arg-type]


def lawless(seed: int) -> Trace:
    """Few operations, any lifetimes: persistent, wrapping, one-off, unused; nested operations; parts of tensors."""
    rng = np.random.default_rng(seed)
    n, m = int(rng.integers(2, 25)), int(rng.integers(1, 20))
    last = np.arange(n)
    for op in range(n - 1, -1, -1):
        if rng.random() < 0.2:
            reach = min(n - 1, op + int(rng.integers(1, 4)))
            last[op] = max(last[op], last[op : reach + 1].max())
    # Nested operations end no later than what they are in.
    for op in range(n):
        last[op + 1 : last[op] + 1] = np.minimum(last[op + 1 : last[op] + 1], last[op])
    tensors, uses = [], []
    for t in range(m):
        chunks = int(rng.integers(1, 6))
        size = chunks * CHUNK - int(rng.integers(0, CHUNK))
        kind = rng.random()
        born, died = int(rng.integers(0, n)), int(rng.integers(0, n))
        if kind < 0.35:
            born, died = -1, -1
        elif kind < 0.75:
            born, died = min(born, died), max(born, died)
        elif kind < 0.8:
            born = -1
        elif kind < 0.85:
            died = -1
        elif died == born:
            died = -1 if born == 0 else born - 1
        tensors.append((size, born, died))
        for _ in range(int(rng.integers(0, 6))):
            op = int(rng.integers(0, n))
            begin, end = max(born, 0), (died if died >= 0 else n - 1)
            alive = begin <= op <= end if begin <= end else (op >= begin or op <= end)
            if not alive:
                continue
            a, b = (0, chunks) if rng.random() < 0.7 else sorted(rng.integers(0, chunks + 1, 2).tolist())
            if a < b:
                uses.append((op, t, a, b, int(rng.random() < 0.4)))
    times = rng.integers(0, 3_000_000, n)
    return build(n, tensors, uses, op_ns=times, op_last=last)


def training(layers: int, seed: int = 0, *, weights: bool = True, per_layer: int = 4) -> Trace:
    """Forward, backward, optimizer: `layers` layers of about ``2 * per_layer + 2`` operations."""
    rng = np.random.default_rng(seed)
    tensors: list[tuple[int, int, int]] = []
    uses: list[tuple[int, int, int, int, int]] = []
    chunks: list[int] = []

    def tensor(size: int, born: int, died: int) -> int:
        tensors.append((size, born, died))
        chunks.append(-(-size // CHUNK))
        return len(tensors) - 1

    def use(op: int, t: int, write: bool = False) -> None:
        uses.append((op, t, 0, chunks[t], int(write)))

    forward, backward = layers * per_layer, layers * per_layer
    n = forward + backward + layers
    for layer in range(layers):
        f, b, s = layer * per_layer, forward + (layers - 1 - layer) * per_layer, forward + backward + layer
        w = tensor(int(rng.integers(1, 8)) * CHUNK, -1, -1) if weights else None
        state = tensor(2 * tensors[w][0], -1, -1) if w is not None else None
        grad = tensor(tensors[w][0], b, min(layer, n - 1)) if w is not None else None
        for k in range(per_layer):
            a = tensor(int(rng.integers(1, 10)) * CHUNK, f + k, b + per_layer - 1 - k)
            use(b + per_layer - 1 - k, a)
            if f + k + 1 < forward:
                use(f + k + 1, a)
        if w is not None and state is not None and grad is not None:
            use(f, w)
            use(b, w)
            use(s, w, True)
            use(s, state, True)
            use(s, grad)
    return build(n, tensors, uses, op_ns=rng.integers(100_000, 3_000_000, n))
