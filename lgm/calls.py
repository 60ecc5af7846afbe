"""Which call of an iteration makes what from what.

Covers: calls, the contents of tensors, what a call reads, makes and needs beside it.
Leaves: which contents are made again (``recompute``), what that makes of the trace (``rewrite``).

A *call* is an operation of torch with all that is nested in it; those marked can be run again, bit for bit. What a
tensor holds between two writes is a *content*, made by the call of the first of them.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

import numpy as np

from .model import Trace

__all__ = ["Calls", "Content"]

Content = tuple[int, int]  # a tensor, and which of its contents


@dataclass(slots=True)
class Calls:
    """Who makes what from what."""

    trace: Trace
    first: list[int]
    last: list[int]
    again: list[bool]
    seconds: list[float]
    reads: list[list[Content]] = field(default_factory=list)
    """Of each call."""
    writes: list[list[int]] = field(default_factory=list)
    """[m] Rows at which each tensor's contents begin."""
    maker: dict[Content, int] = field(default_factory=dict)
    scratch: list[int] = field(default_factory=list)
    """Bytes of what each call allocates beside what lives on after it."""
    makes: list[list[Content]] = field(default_factory=list)
    """By each call."""
    born_in: list[list[int]] = field(default_factory=list)
    """What each call allocates, and lives on."""

    @classmethod
    def of(cls, trace: Trace) -> Calls:
        order = np.argsort(trace.call_first, kind="stable")
        first, last = trace.call_first[order], trace.call_last[order]
        edges = np.concatenate([[0.0], np.cumsum(trace.op_ns / 1e9)])
        self = cls(
            trace, first.tolist(), last.tolist(), (trace.call_again[order] > 0).tolist(),
            (edges[last + 1] - edges[first]).tolist(),
        )  # fmt: skip
        n = trace.operations
        call_at = np.full(n, -1, dtype=np.int64)
        for c, (a, b) in enumerate(zip(self.first, self.last, strict=True)):
            call_at[a : b + 1] = c
        where = call_at.tolist()
        born, died = trace.tensor_born.tolist(), trace.tensor_died.tolist()
        size = (trace.chunks * trace.chunk_bytes).tolist()
        self.writes = [[] for _ in born]
        self.reads = [[] for _ in self.first]
        self.born_in = [[] for _ in self.first]
        self.scratch = [0] * len(self.first)
        for t, row in enumerate(born):
            if row < 0:
                continue
            self._wrote(t, row, where[row])
            if where[row] >= 0:
                c = where[row]
                if row <= died[t] <= self.last[c]:
                    self.scratch[c] += size[t]
                else:
                    self.born_in[c].append(t)
        columns = (trace.use_op.tolist(), trace.use_tensor.tolist(), trace.use_write.tolist())
        for row, t, write in zip(*columns, strict=True):
            c = where[row]
            if c >= 0 and not self.first[c] <= born[t] <= row:
                self.reads[c].append((t, self.content(t, self.first[c])))
            if write:
                self._wrote(t, row, c)
        self.reads = [sorted(set(of)) for of in self.reads]
        self.makes = [[] for _ in self.first]
        for content, c in self.maker.items():
            self.makes[c].append(content)
        return self

    def _wrote(self, t: int, row: int, call: int) -> None:
        writes = self.writes[t]
        if writes and call >= 0 and self.maker.get((t, len(writes) - 1)) == call:
            return  # one call, one content
        writes.append(row)
        if call >= 0:
            self.maker[t, len(writes) - 1] = call

    def content(self, t: int, row: int) -> int:
        """Which content the tensor holds before a row; -1: what it held when the iteration began."""
        return bisect_left(self.writes[t], row) - 1

    def holds(self, content: Content, row: int) -> bool:
        """Whether the tensor is alive before a row, and holds that content."""
        t, k = content
        born, died = int(self.trace.tensor_born[t]), int(self.trace.tensor_died[t])
        alive = (born < row) if died < 0 else (born < row <= died)
        return alive and self.content(t, row) == k
