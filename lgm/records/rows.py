"""Rows of a trace and the operations of the program that they belong to.

An operation that frees memory before it ends, as the backward of a fused one may, takes several rows: the recorder
names all but the first `GOES_ON`.

Covers: which operation a row is part of, and its name as people read it; when each begins if nothing waits.
"""

from __future__ import annotations

import numpy as np

from .model import Floats, Trace

__all__ = ["GOES_ON", "begun_in", "describe", "name_of", "nominal"]

GOES_ON = "(goes on)"  # the recorder's name of a row in the middle of an operation


def begun_in(trace: Trace, row: int) -> int:
    """The row in which the innermost operation that goes on in `row` began; `row` itself where none does."""
    if trace.names[trace.op_name[row]] != GOES_ON:
        return row
    for earlier in range(row - 1, -1, -1):
        if trace.op_last[earlier] >= row and trace.names[trace.op_name[earlier]] != GOES_ON:
            return earlier
    return row


def name_of(trace: Trace, row: int) -> str:
    """``"aten::conv2d"``."""
    name: str = trace.names[trace.op_name[begun_in(trace, row)]]
    return name


def describe(trace: Trace, row: int) -> str:
    """``"aten::conv2d (operation 17 of 240)"``."""
    return f"{name_of(trace, row)} (operation {row} of {trace.operations})"


def nominal(trace: Trace) -> Floats:
    """[n + 1] When operations begin if nothing waits, and the end."""
    return np.concatenate([[0.0], np.cumsum(trace.op_ns / 1e9)])
