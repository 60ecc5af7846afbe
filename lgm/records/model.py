"""The three things the analyzer speaks of: a trace, a device, a plan.

Covers: what their arrays hold, and that they fit together.
Leaves: files (``codec``), what follows from a trace (``iteration.lifetimes``), how a plan is made
(``planning.planner``).

A trace is one training iteration, seen as a circle: after its last operation comes its first again. An *operation* is
one row; it lasts until the next begins. Memory is counted in chunks; a *vTensor* is one chunk of one tensor.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import LgmError
from .device import HOST_COSTS, Device, Prediction
from .limits import (
    LONGEST_SECONDS,
    MOST_BYTES,
    MOST_CHUNKS,
    MOST_ENTRIES,
    MOST_OPERATIONS,
    check_names,
    check_number,
    check_rows,
    check_whole,
    whole_numbers,
)

__all__ = ["HOST_COSTS", "Bools", "Device", "Floats", "Ints", "Plan", "Prediction", "Remaking", "Trace"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Trace:
    """One iteration: n operations, m tensors, k uses. All arrays are int64.

    A tensor with ``born == -1`` was alive when the iteration began; with ``died == -1`` it outlives it. Both: it
    persists (a weight). ``died < born``: it is born in one iteration and dies in the next (a gradient that is set to
    None at the start of the next).
    """

    chunk_bytes: int
    names: tuple[str, ...]
    """The distinct names of operations."""
    op_name: Ints
    """[n] Index into `names`."""
    op_ns: Ints
    """[n] Nanoseconds until the next operation begins, without waiting for copies."""
    op_last: Ints
    """[n] The last operation that began before this one ended: itself, unless others are nested in it."""
    tensor_bytes: Ints
    """[m]"""
    tensor_born: Ints
    """[m] The operation in which it was allocated, or -1."""
    tensor_died: Ints
    """[m] The operation in which it was freed, or -1."""
    use_op: Ints
    """[k] Ascending."""
    use_tensor: Ints
    """[k]"""
    use_first: Ints
    """[k] First chunk that is used."""
    use_last: Ints
    """[k] One past the last chunk that is used."""
    use_write: Ints
    """[k] 1 if it may be written, else 0."""
    meta: dict[str, Any] = field(default_factory=dict)
    """Where it comes from: model, batch, versions, date. Values JSON can hold."""
    call_first: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """[c] The first row of each call: an operation of torch with all that is nested in it. In order, side by side."""
    call_last: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """[c] Its last row."""
    call_again: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """[c] 1 if it can be run again and makes the same, bit for bit (``kernels/torch/torch_traits.h``); 2 if it also
    does not read what it overwrites."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if name not in ("chunk_bytes", "names", "meta"):
                object.__setattr__(self, name, whole_numbers(f"trace: {name}", getattr(self, name)))
        self._check_values()
        self._check_agreement()

    def _check_values(self) -> None:
        """Each value by itself."""
        chunk_bytes = check_whole("trace: chunk_bytes", self.chunk_bytes, 1, MOST_BYTES)
        object.__setattr__(self, "chunk_bytes", chunk_bytes)
        check_names("trace: names", self.names)
        if not isinstance(self.meta, dict):
            raise LgmError(f"trace: meta must be a dictionary, not {self.meta!r:.40}")
        n, m, k, c = self.operations, self.tensors, len(self.use_op), len(self.call_first)
        check_whole("trace: the number of operations", n, 1, MOST_OPERATIONS)
        check_whole("trace: the number of tensors", m, 1, MOST_ENTRIES)
        check_rows(
            "trace",
            (
                ("op_name", self.op_name, n, 0, len(self.names)),
                ("op_ns", self.op_ns, n, 0, LONGEST_SECONDS * 10**9 + 1),
                ("op_last", self.op_last, n, 0, n),
                ("tensor_bytes", self.tensor_bytes, m, 1, MOST_BYTES + 1),
                ("tensor_born", self.tensor_born, m, -1, n),
                ("tensor_died", self.tensor_died, m, -1, n),
                ("use_op", self.use_op, k, 0, n),
                ("use_tensor", self.use_tensor, k, 0, m),
                ("use_first", self.use_first, k, 0, MOST_CHUNKS + 1),
                ("use_last", self.use_last, k, 0, MOST_CHUNKS + 1),
                ("use_write", self.use_write, k, 0, 2),
                ("call_first", self.call_first, c, 0, n),
                ("call_last", self.call_last, c, 0, n),
                ("call_again", self.call_again, c, 0, 3),
            ),
        )

    def _check_agreement(self) -> None:
        """Values beside each other. Sums that int64 may not hold are those of floats."""
        chunks, used = self.chunks, self.use_last - self.use_first
        born, died = self.tensor_born[self.use_tensor], self.tensor_died[self.use_tensor]
        born, late = np.maximum(born, 0), np.where(died < 0, self.operations, died)
        after, before = self.use_op >= born, self.use_op <= late
        rules = (
            (self.op_last >= np.arange(self.operations), "an operation ends before it begins"),
            (np.diff(self.use_op) >= 0, "uses are not in the order of their operations"),
            (self.call_last >= self.call_first, "a call ends before it begins"),
            (self.call_first[1:] > self.call_last[:-1], "calls overlap, or are not in order"),
            ((used >= 0) & (self.use_last <= chunks[self.use_tensor]), "a use reaches outside of its tensor"),
            (np.where(born <= late, after & before, after | before), "a tensor is used while it is not alive"),
        )
        for holds, broken in rules:
            if not holds.all():
                raise LgmError(f"trace: {broken} (entry {int(np.argmin(holds))})")
        seconds, count, uses = (float(of.sum(dtype=np.float64)) for of in (self.op_ns / 1e9, chunks, used))
        check_number("trace: the seconds of all operations", seconds, 1e-9, LONGEST_SECONDS)
        check_number("trace: the chunks of all tensors", count, 1, MOST_CHUNKS)
        check_number("trace: the bytes of all tensors", count * self.chunk_bytes, 1, MOST_BYTES)
        check_number("trace: the bytes of all uses", uses * self.chunk_bytes, 0, MOST_BYTES)

    @property
    def operations(self) -> int:
        return len(self.op_name)

    @property
    def tensors(self) -> int:
        return len(self.tensor_bytes)

    @property
    def chunks(self) -> Ints:
        """[m] Chunks of each tensor."""
        return -(-self.tensor_bytes // self.chunk_bytes)

    @property
    def lasting(self) -> Bools:
        """[m] Older than the iteration, and still there after it: weights and what belongs to them."""
        return (self.tensor_born < 0) & (self.tensor_died < 0)

    @property
    def wraps(self) -> Bools:
        """[m] Born in one iteration and freed in the next, at an earlier operation: gradients that are zeroed then."""
        return (self.tensor_born >= 0) & (self.tensor_died >= 0) & (self.tensor_died < self.tensor_born)

    @property
    def seconds(self) -> float:
        """Length of the iteration if no copy is ever waited for."""
        return float(self.op_ns.sum()) / 1e9


@dataclass(frozen=True, slots=True)
class Remaking:
    """What a plan recomputes, and which rows and tensors of its trace are those of the iteration as recorded."""

    origin: Trace
    """The iteration as recorded."""
    at: Ints
    """[n] The plan's row of each recorded one. Rows between are what is recomputed before it."""
    tensor: Ints
    """[m'] The recorded tensor each of the plan's is; -1: it lives only while something is recomputed."""
    drop_op: Ints
    """Rows of the plan at which tensors leave without a copy, ascending."""
    drop_tensor: Ints
    """Which: recorded tensors."""
    make_op: Ints
    """Rows of the plan at which making them begins, ascending."""
    make_tensor: Ints
    sees: Ints
    """[n] 1 for recorded rows with which a call begins that is run again."""

    @property
    def rows_again(self) -> Bools:
        """[n'] Whether each row of the plan makes something again."""
        again = np.ones(int(self.at.max(initial=-1)) + 1, dtype=bool)
        again[self.at] = False
        return again

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if name != "origin":
                object.__setattr__(self, name, whole_numbers(f"remaking: {name}", getattr(self, name)))
        n, m, k = self.origin.operations, self.origin.tensors, len(self.tensor)
        rows = int(self.at.max(initial=0)) + 1
        check_rows(
            "remaking",
            (
                ("at", self.at, n, 0, rows),
                ("tensor", self.tensor, k, -1, m),
                ("drop_op", self.drop_op, len(self.drop_op), 0, rows),
                ("drop_tensor", self.drop_tensor, len(self.drop_op), 0, m),
                ("make_op", self.make_op, len(self.make_op), 0, rows),
                ("make_tensor", self.make_tensor, len(self.make_op), 0, m),
                ("sees", self.sees, n, 0, 2),
            ),
        )
        if (np.diff(self.at) <= 0).any() or (np.diff(self.drop_op) < 0).any() or (np.diff(self.make_op) < 0).any():
            raise LgmError("remaking: rows are not in order")


@dataclass(frozen=True, slots=True)
class Plan:
    """What leaves, what returns, and when; rows ordered by operation. Advice: any program stays right without it.

    A move of vTensors [first, last) of a tensor begins when the operation does.
    """

    trace: Trace
    device: Device
    reservation: int
    """Chunks kept free ahead of demand."""
    out_op: Ints
    out_tensor: Ints
    out_first: Ints
    out_last: Ints
    in_op: Ints
    in_tensor: Ints
    in_first: Ints
    in_last: Ints
    in_need: Ints
    """The operation each arrival is for."""
    keep: Ints
    """[m] 1 if the addresses of a freed tensor should stay mapped for the next of its size."""
    prediction: Prediction
    switches: dict[str, str] = field(default_factory=dict)
    """The heuristics it was made with."""
    remaking: Remaking | None = None
    """What it recomputes; then `trace` is not the iteration as recorded, but as it will be."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if name.startswith(("out_", "in_")) or name == "keep":
                object.__setattr__(self, name, whole_numbers(f"plan: {name}", getattr(self, name)))
        n, m, chunks = self.trace.operations, self.trace.tensors, self.trace.chunks
        for side in ("out", "in"):
            op, tensor, first, last = (getattr(self, f"{side}_{f}") for f in ("op", "tensor", "first", "last"))
            k = len(op)
            check_rows(
                "plan",
                (
                    (f"{side}_op", op, k, 0, n),
                    (f"{side}_tensor", tensor, k, 0, m),
                    (f"{side}_first", first, k, 0, MOST_CHUNKS),
                    (f"{side}_last", last, k, 0, MOST_CHUNKS + 1),
                ),
            )
            if (np.diff(op) < 0).any():
                raise LgmError(f"plan: {side} moves are not in the order of their operations")
            if ((first >= last) | (last > chunks[tensor])).any():
                raise LgmError(f"plan: an {side} move is empty or reaches outside of its tensor")
        check_rows("plan", (("in_need", self.in_need, len(self.in_op), 0, n), ("keep", self.keep, m, 0, 2)))
        reservation = check_whole("plan: reservation", self.reservation, 0, self.device.budget_chunks - 1)
        object.__setattr__(self, "reservation", reservation)
        if self.remaking is not None and (
            int(self.remaking.at[-1]) != n - 1 or len(self.remaking.tensor) != m or self.remaking.origin.operations > n
        ):
            raise LgmError("plan: what it recomputes does not fit its trace")
        if self.remaking is not None and (self.remaking.tensor[np.append(self.out_tensor, self.in_tensor)] < 0).any():
            raise LgmError("plan: a move of what lives only while something is recomputed")
        if not isinstance(self.switches, dict):
            raise LgmError(f"plan: switches must be a dictionary, not {self.switches!r:.40}")
        check_names("plan: switches", (*self.switches, *self.switches.values()))

    @property
    def recorded(self) -> Trace:
        """The iteration as recorded."""
        return self.trace if self.remaking is None else self.remaking.origin

    @property
    def out_chunks(self) -> int:
        """Chunks the plan asks to leave, clean ones included."""
        return int((self.out_last - self.out_first).sum())

    @property
    def in_chunks(self) -> int:
        return int((self.in_last - self.in_first).sum())
