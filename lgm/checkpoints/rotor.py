"""Which layers of a chain to keep and which to run again, so that it takes the least time within a memory.

Source: Herrmann, Beaumont, Eyraud-Dubois, Hermann, Joly, Shilova, *Optimal checkpointing for heterogeneous chains*,
arXiv 1911.13214 (rotor), theorem 1: optimal among schedules that hold what they have kept until backward has used it.

Layer k is run for ``seconds[k]``, leaves ``size[k]`` behind for its backward, and hands ``held[k]`` to the next layer;
while backward is at it, ``beside[k]`` is alive that the chain does not decide about: gradients, weights, what of other
layers there is by then (in the paper only the gradients). A range of layers whose input is held is run

- by keeping what its first layer leaves, and then the range behind that; or
- up to a layer j without keeping anything but what it hands on: then the range from j on forward and backward, then,
  with the memory of that free again, the range before j from its input.

So a layer may be run several times, but is kept once.

Covers: the dynamic program, the schedule it finds.
Leaves: the least peak whatever the time (``least_peak``); the chain of a trace and the plan for it (``chain``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import LgmError
from ..records.limits import are_sizes
from ..records.model import Floats, Ints

__all__ = ["SLOTS", "Schedule", "Tables", "fill_tables"]

SLOTS = 256  # into which the memory is divided


@dataclass(frozen=True, slots=True)
class Schedule:
    """What n layers keep, and from which pass on. Pass n is the forward pass, pass k that for backward of layer k."""

    kept: list[int]
    """The pass from which on each keeps what it leaves behind."""
    checkpoints: dict[int, int]
    """Layers whose input is held, and the pass from which on."""
    seconds: float
    """Of all that is run forward."""


@dataclass(frozen=True, slots=True)
class Tables:
    """Least times of all ranges of layers in all memories."""

    least: Floats
    """[n, n, slots + 1] Seconds of layers a to b in so many slots beside their input; inf: too few."""
    choice: Ints
    """[n, n, slots + 1] The layer j up to which nothing is kept; a: what layer a leaves is."""
    size: Ints
    """[n] Slots."""
    held: Ints
    """[n] Slots."""

    @property
    def slots(self) -> int:
        """Into which the memory is divided."""
        return int(self.least.shape[2]) - 1

    def fewest_slots(self) -> int:
        """The least memory in which the chain runs; one more than there are if in none."""
        fits = np.isfinite(self.least[0, -1])
        return int(np.argmax(fits)) if fits.any() else len(fits)

    def schedule(self, slots: int) -> Schedule:
        """The fastest in so many slots.

        Raises
        ------
        LgmError
            If that is too little.
        """
        n = len(self.size)
        if not 0 <= slots <= self.slots or not np.isfinite(self.least[0, -1, slots]):
            raise LgmError(f"the chain needs {self.fewest_slots()} slots of memory, and has {slots}")
        found = Schedule([n] * n, {}, float(self.least[0, -1, slots]))
        todo = [(0, n - 1, slots, n)]
        while todo:
            a, b, m, of = todo.pop()
            j = int(self.choice[a, b, m])
            if j > a:
                found.checkpoints[j] = of
                todo += [(a, j - 1, m, j - 1), (j, b, m - int(self.held[j - 1]), of)]
                continue
            found.kept[a] = of
            if a < b:
                todo.append((a + 1, b, m - int(self.size[a]), of))
        return found


def fill_tables(
    seconds: Floats, size: Floats, held: Floats, beside: Floats, memory: float, slots: int = SLOTS
) -> Tables:
    """Least times of a chain. Time n^3 steps of `slots` each, which NumPy does at once.

    Parameters
    ----------
    seconds, size, held, beside
        [n] Of each layer, see above; sizes in bytes, rounded up to slots.
    memory
        Bytes, divided into `slots`.

    Raises
    ------
    LgmError
        If the rows are not of one length, or a number is negative or none.
    """
    rows = [np.asarray(row, dtype=np.float64) for row in (seconds, size, held, beside)]
    if not are_sizes(*rows) or memory <= 0:
        raise LgmError("a chain is four rows of as many numbers, none of them negative, and a memory above 0")
    n = len(rows[0])
    keeps, hands, others = (np.ceil(row * (slots / memory) - 1e-9).astype(np.int64) for row in rows[1:])
    begin = np.concatenate([[0.0], np.cumsum(rows[0])])
    least = np.full((n, n, slots + 1), np.inf)
    choice = np.zeros((n, n, slots + 1), dtype=np.int64)
    for b in range(n):
        for a in range(b, -1, -1):
            _fill(least, choice, begin, keeps, hands, others, a, b)
    return Tables(least, choice, keeps, hands)


def _fill(least: Floats, choice: Ints, begin: Floats, size: Ints, held: Ints, beside: Ints, a: int, b: int) -> None:
    """Layers a to b in every memory. Pre: all ranges within it are filled."""
    row = least[a, b]
    need = size[a] + max(beside[a], beside[b])  # going backward, and forward while the gradient of b waits
    rest = _less(least[a + 1, b], int(size[a])) if a < b else np.zeros(len(row))
    row[need:] = (begin[a + 1] - begin[a]) + rest[need:]
    choice[a, b] = a
    between = 0  # of the layers up to j, what one reads and what it hands on
    for j in range(a + 1, b + 1):
        between = max(between, int(held[j - 1]) + (int(held[j - 2]) if j - 1 > a else 0))
        other = (begin[j] - begin[a]) + _less(least[j, b], int(held[j - 1])) + least[a, j - 1]
        other[: between + beside[b]] = np.inf
        better = other < row
        row[better] = other[better]
        choice[a, b][better] = j


def _less(row: Floats, slots: int) -> Floats:
    """What a row says of so many slots less."""
    shifted = np.full(len(row), np.inf)
    if slots < len(row):
        shifted[slots:] = row[: len(row) - slots]
    return shifted
