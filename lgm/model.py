"""The three things the analyzer speaks of: a trace, a device, a plan.

Covers: what their arrays hold, and that they fit together.
Leaves: files (``codec``), what follows from a trace (``lifetimes``), how a plan is made (``planner``).

A trace is one training iteration, seen as a circle: after its last operation comes its first again. An *operation* is
one row; it lasts until the next begins. Memory is counted in chunks; a *vTensor* is one chunk of one tensor.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["HOST_COSTS", "Device", "Floats", "InfeasibleError", "Ints", "LgmError", "Plan", "Prediction", "Trace"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


class LgmError(Exception):
    """Base of what this package raises on purpose."""


class InfeasibleError(LgmError):
    """No plan exists: one operation alone needs more than the budget.

    Attributes
    ----------
    operation : str
        The operation and its index.
    needed : int
        Bytes it uses at once: the smallest budget that works.
    """

    def __init__(self, operation: str, needed: int, budget: int, text: str) -> None:
        super().__init__(text)
        self.operation, self.needed, self.budget = operation, needed, budget


def _ints(value: Any) -> Ints:
    return np.ascontiguousarray(value, dtype=np.int64)


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

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if name not in ("chunk_bytes", "names", "meta"):
                object.__setattr__(self, name, _ints(getattr(self, name)))
        n, m = self.operations, self.tensors
        shapes = {n: ("op_ns", "op_last"), m: ("tensor_born", "tensor_died")}
        for length, fields in shapes.items():
            for name in fields:
                if len(getattr(self, name)) != length:
                    raise LgmError(f"trace: {name} has {len(getattr(self, name))} entries instead of {length}")
        if len({len(getattr(self, f"use_{f}")) for f in ("op", "tensor", "first", "last", "write")}) != 1:
            raise LgmError("trace: the arrays of uses differ in length")
        if n == 0:
            raise LgmError("trace: there is no operation in it")
        if type(self.chunk_bytes) is not int or not all(isinstance(name, str) for name in self.names):
            raise LgmError("trace: chunk_bytes must be a whole number and names must be text")
        if self.chunk_bytes <= 0 or (self.tensor_bytes <= 0).any() or (self.op_ns < 0).any():
            raise LgmError("trace: sizes must be positive and durations not negative")
        checks = (
            (self.op_name, 0, len(self.names)),
            (self.op_last - np.arange(n), 0, n),
            (self.op_last, 0, n),
            (self.tensor_born, -1, n),
            (self.tensor_died, -1, n),
            (self.use_op, 0, n),
            (self.use_tensor, 0, m),
        )
        for values, low, high in checks:
            if len(values) and (values.min() < low or values.max() >= high):
                raise LgmError("trace: an index points outside of its array")
        if (np.diff(self.use_op) < 0).any():
            raise LgmError("trace: uses are not in the order of their operations")
        chunks = self.chunks[self.use_tensor] if len(self.use_op) else self.use_first
        if (self.use_first < 0).any() or (self.use_last > chunks).any() or (self.use_first > self.use_last).any():
            raise LgmError("trace: a use reaches outside of its tensor")

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

    def describe(self, op: int) -> str:
        """``"aten::conv2d (operation 17 of 240)"``."""
        return f"{self.names[self.op_name[op]]} (operation {op} of {self.operations})"


@dataclass(frozen=True, slots=True)
class Device:
    """What the plan must know of a device."""

    budget_chunks: int
    out_speed: float
    """Bytes a second from the device to the host."""
    in_speed: float
    """Bytes a second back."""
    latency: float = 0.0
    """Seconds a copy takes beside its bytes."""
    tax: float = 0.0
    """Seconds of computing lost for each byte copied: 0 where copy engines are their own, as on a GPU; where
    copying takes the processor that computes, about 1 / (speed x cores)."""
    switch: float = 0.0
    """Seconds of computing lost for each chunk that leaves or comes (mapping it)."""
    jitter: float = 0.0
    """Seconds a copy may begin late, where copy threads share processors with computing; arrivals begin that much
    earlier."""

    def __post_init__(self) -> None:
        if self.budget_chunks < 1 or self.out_speed <= 0 or self.in_speed <= 0:
            raise LgmError("device: the budget must hold one chunk, and speeds must be positive")


HOST_COSTS = {"switch": 8e-6, "jitter": 4e-3}
"""Of a :class:`Device` whose memory is this machine's: mapping a chunk (DESIGN.md has the measurement), and how long a
copy thread may wait for a processor that computes."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the simulator says a plan will do in its steady state."""

    step_seconds: float
    peak_chunks: int
    """Most chunks held at once: resident, leaving and arriving vTensors."""
    waits_seconds: float
    """Of the step, spent waiting for copies."""
    out_chunks: int
    in_chunks: int


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

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if name.startswith(("out_", "in_")) or name == "keep":
                object.__setattr__(self, name, _ints(getattr(self, name)))

    @property
    def out_chunks(self) -> int:
        """Chunks the plan asks to leave, clean ones included."""
        return int((self.out_last - self.out_first).sum())

    @property
    def in_chunks(self) -> int:
        return int((self.in_last - self.in_first).sum())
