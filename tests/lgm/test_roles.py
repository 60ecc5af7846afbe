"""Where the backward pass begins, and what tensors are for: told by names, or by who is still waited for."""

from __future__ import annotations

from collections import Counter

import numpy as np

from lgm import Trace
from lgm.iteration.roles import ROLES, phases, roles_of

from .random_traces import CHUNK, build


def layers(count: int, *, updates: bool = True, names: bool = False) -> Trace:
    """Products alone: `Wk` times what the layer before made; backward a gradient of it and one of `Wk`; the step."""
    tensors = [(CHUNK, -1, -1) for _ in range(count)]
    uses: list[tuple[int, int, int, int, int]] = []
    for k in range(count):  # forward
        uses += [(k, k, 0, 1, 0)] + ([(k, count + k - 1, 0, 1, 0)] if k else [])
        tensors.append((2 * CHUNK, k, 3 * count - 1 - k))
    for k in reversed(range(count)):  # backward: rows count ... 2 * count - 1, each makes two tensors
        row = 2 * count - 1 - k
        uses += [(row, k, 0, 1, 0), (row, count + k, 0, 2, 0)]
        tensors += [(CHUNK, row, row + 1), (CHUNK, row, 3 * count - 1)]
        if k < count - 1:
            uses.append((row, len(tensors) - 4, 0, 1, 0))
        uses.append((3 * count - 1 - k, len(tensors) - 1, 0, 1, 0))
        uses.append((3 * count - 1 - k, k, 0, 1, int(updates)))
    rows = 3 * count
    return build(
        rows,
        tensors,
        uses,
        names=("mm", "mm_backward", "add_"),
        op_name=[int(names and count <= row < 2 * count) for row in range(rows)],
    )


def test_a_backward_pass_that_no_name_tells() -> None:
    for count in (3, 8):
        assert phases(layers(count)) == phases(layers(count, names=True)) == (count, 2 * count)
        roles = Counter(ROLES[k] for k in roles_of(layers(count)).role)
        assert roles == {"weights": count, "activations": count, "gradients of activations": count, "gradients": count}


def test_without_an_optimizer_there_is_none() -> None:
    trace = layers(4, updates=False)
    assert phases(trace) == (12, 12)
    lone = build(2, [(CHUNK, -1, -1)], [(0, 0, 0, 1, 0), (1, 0, 0, 1, 1)])
    assert phases(lone) == (2, 2)  # it writes what it read, and nothing else is there
    assert np.array_equal(roles_of(lone).role, [ROLES.index("weights")])
