"""Which rows of a recorded iteration would run kernels on a GPU, and how much memory each of those touches.

A row is an operation of torch that used memory, and many lie within others: ``clamp_min`` within ``relu``, ``empty``
within both. A time for each of them would count one kernel several times. So a row is one of these:

- part of a *product*: a multiplication of matrices (convolutions among them) with all that lies within it, such as a
  bias that is copied first. It is one kernel; which of its rows the processor's time was counted in is accident.
- what makes memory or names it (``empty``, ``as_strided_``): it runs nothing.
- what others within it carry out (``relu`` by ``clamp_min``): it runs nothing by itself.
- else a kernel that is bound by memory.

Covers: that, and the bytes that are read and written. Leaves: how long that takes (``gpus``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from ..records.model import Bools, Ints, Trace
from ..records.rows import GOES_ON, begun_in

__all__ = ["Kernels"]

_PRODUCT = re.compile(r"(^|::|_)(conv\w*|(add|badd|b)?b?mm|linear|matmul|\w*attention\w*|lstm\w*|gru\w*)(_|\.|$)")
_CONVOLUTION = re.compile(r"conv")
_RUNS_NOTHING = re.compile(r"(^|::)(empty\w*|new_empty\w*|as_strided_?|_?resize_\w*|set_|_unsafe_view|view)(\.|$)")
# Statistics over all that is read are needed before the first result is: it is read twice.
_READS_TWICE = re.compile(r"batch_norm")


@dataclass(frozen=True, slots=True)
class Kernels:
    """What each row of a trace runs."""

    runs: Bools
    """[n] Whether it runs a kernel of its own; of a product the first row does."""
    product: Ints
    """[n] The first row of the product that it is part of; -1: of none."""
    convolution: Bools
    """[n] Whether it is part of a convolution."""
    touched: Ints
    """[n] Bytes that are read and written: arguments, what it allocates; what it writes counts for both."""

    @classmethod
    def of(cls, trace: Trace) -> Kernels:
        begun, name = np.arange(trace.operations), trace.op_name
        goes_on = _are(trace, name, re.compile(re.escape(GOES_ON)))
        for row in np.flatnonzero(goes_on).tolist():
            begun[row] = begun_in(trace, row)
        nothing, multiplies, convolves, twice = (
            _are(trace, name[begun], pattern) for pattern in (_RUNS_NOTHING, _PRODUCT, _CONVOLUTION, _READS_TWICE)
        )
        first = multiplies & ~goes_on & ~_within(trace, multiplies & ~goes_on)
        product = np.full(trace.operations, -1, dtype=np.int64)
        for row in np.flatnonzero(first).tolist():
            product[row : trace.op_last[row] + 1] = row
        runs = ~nothing & ~_within(trace, ~nothing & ~goes_on)
        runs = np.where(product >= 0, first, runs[begun])
        return cls(runs, product, (product >= 0) & convolves[product], _touched(trace, runs, product, twice))


def _are(trace: Trace, name: Ints, pattern: re.Pattern[str]) -> Bools:
    """[n] Whether rows of these names (indices into the trace's) are of that kind."""
    return np.array([pattern.search(each) is not None for each in trace.names], dtype=bool)[name]


def _within(trace: Trace, those: Bools) -> Bools:
    """[n] Whether any of those rows lies within each, itself apart."""
    before = np.concatenate([[0], np.cumsum(those)])
    return np.asarray(before[trace.op_last + 1] > before[np.arange(trace.operations) + 1], dtype=bool)


def _in_one_of(trace: Trace, those: Bools) -> Bools:
    """[n] Whether each row lies within one of those, or is one."""
    opened = np.zeros(trace.operations + 1, dtype=np.int64)
    np.add.at(opened, np.flatnonzero(those), 1)
    np.add.at(opened, trace.op_last[those] + 1, -1)
    return np.asarray(np.cumsum(opened)[:-1] > 0, dtype=bool)


def _touched(trace: Trace, runs: Bools, product: Ints, twice: Bools) -> Ints:
    """[n] What is allocated is written once: by the kernel that it is allocated within, or else by the first to write
    it, which then touches no more than that.

    What lives only within a product is how the processor does it (it puts numbers in another order first), not a GPU.
    """
    used = np.flatnonzero(runs[trace.use_op])
    op, tensor, write = trace.use_op[used], trace.use_tensor[used], trace.use_write[used]
    first, last = trace.use_first[used] * trace.chunk_bytes, trace.use_last[used] * trace.chunk_bytes
    size = np.minimum(last, trace.tensor_bytes[tensor]) - first
    born, died = trace.tensor_born, trace.tensor_died
    since = (op - born[tensor]) % trace.operations  # rows; a tensor may be born in one iteration and used in the next
    order = np.argsort(since, kind="stable")
    fills = np.zeros(len(used), dtype=bool)
    fills[order[np.unique(tensor[order], return_index=True)[1]]] = True
    fills &= (write > 0) & (born[tensor] >= 0) & ((since == 0) | ~_in_one_of(trace, runs)[born[tensor]])
    touched = np.zeros(trace.operations, dtype=np.int64)
    np.add.at(touched, op, np.where(fills, 0, size * (1 + write + (twice[op] & (write == 0)))))
    within = (born >= 0) & (died >= born) & (product[born] >= 0) & (product[born] == product[died])
    made = np.flatnonzero((born >= 0) & ~within)
    np.add.at(touched, born[made], trace.tensor_bytes[made])
    return touched
