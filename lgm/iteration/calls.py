"""Which call of an iteration makes what from what.

Covers: calls, the contents of tensors, what a call reads, makes and needs beside it.
Leaves: which contents are recomputed (``remaking.recompute``), what that makes of the trace (``remaking.rewrite``).

A *call* is an operation of torch with all that is nested in it; those marked can be run again, bit for bit. What a
tensor holds between two writes is a *content*, made by the call of the first of them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

import numpy as np

from ..records.model import Trace
from ..records.rows import nominal

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
    allocates: list[list[Content]] = field(default_factory=list)
    """What each call puts into memory of its own when it is run again: what it allocates and lives on, and what it
    overwrites without reading it."""
    begun: dict[int, list[int]] = field(default_factory=dict)
    """The contents of a tensor that such a call began, but for its first."""

    @classmethod
    def of(cls, trace: Trace) -> Calls:
        order = np.argsort(trace.call_first, kind="stable")
        first, last = trace.call_first[order], trace.call_last[order]
        edges = nominal(trace)
        self = cls(
            trace, first.tolist(), last.tolist(), (trace.call_again[order] > 0).tolist(),
            (edges[last + 1] - edges[first]).tolist(),
        )  # fmt: skip
        n = trace.operations
        fills = (trace.call_again[order] == 2).tolist()
        call_at = np.full(n, -1, dtype=np.int64)
        for c, (a, b) in enumerate(zip(self.first, self.last, strict=True)):
            call_at[a : b + 1] = c
        where = call_at.tolist()
        born, died = trace.tensor_born.tolist(), trace.tensor_died.tolist()
        size = (trace.chunks * trace.chunk_bytes).tolist()
        self.writes = [[] for _ in born]
        self.reads = [[] for _ in self.first]
        self.allocates = [[] for _ in self.first]
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
                    self.allocates[c].append((t, 0))
        columns = (trace.use_op.tolist(), trace.use_tensor.tolist(), trace.use_write.tolist())
        for row, t, write in zip(*columns, strict=True):
            c = where[row]
            own = c >= 0 and self.first[c] <= born[t] <= row
            filled = (
                c >= 0 and fills[c] and not own and (bool(write) or self.maker.get((t, len(self.writes[t]) - 1)) == c)
            )
            if c >= 0 and not own and not filled:
                self.reads[c].append((t, self.content(t, self.first[c])))
            if write and self._wrote(t, row, c) and filled:
                self.allocates[c].append((t, len(self.writes[t]) - 1))
                self.begun.setdefault(t, []).append(len(self.writes[t]) - 1)
        self.reads = [sorted(set(of)) for of in self.reads]
        self.makes = [[] for _ in self.first]
        for content, c in self.maker.items():
            self.makes[c].append(content)
        return self

    def _wrote(self, t: int, row: int, call: int) -> bool:
        writes = self.writes[t]
        if writes and call >= 0 and self.maker.get((t, len(writes) - 1)) == call:
            return False  # one call, one content
        writes.append(row)
        if call >= 0:
            self.maker[t, len(writes) - 1] = call
        return True

    def first_of(self, content: Content) -> Content:
        """The content in whose memory it comes about when it is recomputed: what follows overwrites that."""
        t, k = content
        begun = self.begun.get(t, ())
        at = bisect_right(begun, k)
        return t, begun[at - 1] if at else 0

    def content(self, t: int, row: int) -> int:
        """Which content the tensor holds before a row; -1: what it held when the iteration began."""
        return bisect_left(self.writes[t], row) - 1

    def holds(self, content: Content, row: int) -> bool:
        """Whether the tensor is alive before a row, and holds that content."""
        t, k = content
        born, died = int(self.trace.tensor_born[t]), int(self.trace.tensor_died[t])
        alive = (born < row) if died < 0 else (born < row <= died)
        return alive and self.content(t, row) == k
