"""What can be made again instead of being kept or copied, and at which price.

Covers: which contents a call can make again, from what, at which cost; choosing among them and swaps by one price.
Leaves: the trace as it is once they are made again (``rewrite``), how many prices are tried (``mix``).

A *call* is an operation of torch with all that is nested in it; those marked can be run again, bit for bit. What a
tensor holds between two writes is a *content*, made by the call of the first of them. To make a content again, its call
is run again, before it those of its sources that are gone by then, and so on: its *chain*.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

import numpy as np

from .choice import choose
from .cost import prices
from .lifetimes import Lifetimes
from .model import Device, Trace
from .problem import Cover

__all__ = ["Calls", "Candidate", "candidates", "choose_ways"]

_LONGEST = 12  # calls in a chain


Content = tuple[int, int]  # a tensor, and which of its contents
Way = tuple["Candidate", list[int]]  # what is made again, and its chain


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

    def chain(self, content: Content, row: int, away: dict[int, list[tuple[int, int]]]) -> list[int] | None:
        """Calls that make a content before a row, in order; None if none can, or too many must.

        `away`: times [start, stop) at which tensors are dropped.
        """
        calls: set[int] = set()
        open_contents, seen = [content], {content}
        while open_contents:
            c = self.maker.get(open_contents.pop())
            if c is None or not self.again[c]:
                return None
            if c in calls:
                continue
            calls.add(c)
            if len(calls) > _LONGEST:
                return None
            for source in self.reads[c]:
                dropped = any(a <= row < b for a, b in away.get(source[0], ()))
                if source not in seen and (dropped or not self.holds(source, row)):
                    seen.add(source)
                    open_contents.append(source)
        return sorted(calls)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A tensor that could be dropped over [start, stop) and made again before `stop`."""

    tensor: int
    content: int
    start: int
    stop: int
    gaps: tuple[int, ...]
    chunks: int
    seconds: float
    """Of its chain, while nothing else is dropped."""


def candidates(trace: Trace, life: Lifetimes) -> tuple[Calls, list[Candidate]]:
    """What could be made again. What lasts could not: its history is longer than the trace."""
    calls = Calls.of(trace)
    gaps = life.gaps
    chunks = trace.chunks.tolist()
    groups: dict[tuple[int, int, int], list[int]] = {}
    usable = (gaps.returns > 0) & (gaps.stop < trace.operations) & (trace.tensor_born[gaps.tensor] >= 0)
    for g in np.flatnonzero(usable).tolist():
        groups.setdefault((int(gaps.tensor[g]), int(gaps.start[g]), int(gaps.stop[g])), []).append(g)
    found = []
    for (t, start, stop), of in groups.items():
        died = int(trace.tensor_died[t])
        count = int(gaps.chunks[of].sum())
        if count < chunks[t] or start <= int(trace.tensor_born[t]) or (0 <= died < stop):
            continue
        content = calls.content(t, stop)
        if content != calls.content(t, start):
            continue
        chain = calls.chain((t, content), stop, {})
        if chain is not None:
            seconds = sum(calls.seconds[c] for c in chain)
            found.append(Candidate(t, content, start, stop, tuple(of), count, seconds))
    return calls, found


def choose_ways(
    trace: Trace, life: Lifetimes, device: Device, calls: Calls, found: list[Candidate], price: float
) -> list[Way]:
    """Which are made again, and how, where a second of copying is worth `price` seconds of computing.

    One cover problem (``choice``) with the cheaper of both ways for each gap. Chains depend on each other: those that
    are cheapest for what they free come first, what they read is not dropped, and what is dropped they do not read.
    """
    gaps = life.gaps
    copying = prices(gaps, device, "moves") * (life.gaps.bytes / device.in_speed + device.latency).max(initial=0.0)
    copying = copying + gaps.bytes * device.tax * 2
    each, by_gap = copying * price, {}
    for k, one in enumerate(found):
        making = one.seconds / one.chunks
        if making < float(each[list(one.gaps)].mean()):
            each[list(one.gaps)] = making
            by_gap.update(dict.fromkeys(one.gaps, k))
    demand = life.live - device.budget_chunks
    problem = Cover(
        trace.operations, demand, gaps.start, gaps.stop, gaps.chunks, each / max(each.max(initial=0.0), 1e-12)
    )
    used = choose(problem, seconds=0.3)
    wanted = sorted({by_gap[g] for g in np.flatnonzero(used > 0).tolist() if g in by_gap})
    wanted.sort(key=lambda k: found[k].seconds / (found[k].chunks * (found[k].stop - found[k].start)))
    away: dict[int, list[tuple[int, int]]] = {}
    read: dict[int, list[int]] = {}
    taken = []
    for one in (found[k] for k in wanted):
        if any(one.start <= row < one.stop for row in read.get(one.tensor, ())):
            continue
        chain = calls.chain((one.tensor, one.content), one.stop, away)
        if chain is None:
            continue
        seconds = sum(calls.seconds[c] for c in chain)
        if seconds > float((copying[list(one.gaps)] * gaps.chunks[list(one.gaps)]).sum()) * price:
            continue
        for c in chain:
            for source in calls.reads[c]:
                if calls.holds(source, one.stop):
                    read.setdefault(source[0], []).append(one.stop)
        away.setdefault(one.tensor, []).append((one.start, one.stop))
        taken.append((one, chain))
    return taken
