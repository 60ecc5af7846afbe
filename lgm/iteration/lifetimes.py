"""What a trace says about memory: who is alive when, who is needed when, and between which uses a vTensor may be away.

Covers: segments, gaps, live and needed chunks for each operation, the peak.
Leaves: which gaps are worth using (``choosing.cost``, ``choosing.choice``).

A *segment* is a run of a tensor's chunks that are always used together and hold the same number of bytes: most tensors
are one, or two where their last chunk is not full (such a tail sets a chunk free for few bytes). A *gap* is the time
between two uses of a segment, as the half-open range of operations [start, stop). The iteration is a circle of n
operations: a gap of a weight may reach from the end of one iteration into the next, then ``stop > n``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..records.model import Bools, Ints, Trace

__all__ = ["Gaps", "Lifetimes", "analyze_lifetimes", "cover", "lifespans"]


@dataclass(frozen=True, slots=True)
class Gaps:
    """g gaps, ordered by segment and then by time."""

    tensor: Ints
    first: Ints
    """[g] First chunk of the segment."""
    chunks: Ints
    """[g] Chunks of the segment: how many may be away."""
    bytes: Ints
    """[g] Bytes in each of them."""
    start: Ints
    """[g] First operation that does not need it; in [0, n)."""
    stop: Ints
    """[g] The operation that needs it again, or one past its end of life; in (start, start + n]."""
    returns: Ints
    """[g] 1 if it is used again, 0 if it only waits to be freed."""
    epoch: Ints
    """[g] Numbers the times between two writes: the first gap used in an epoch copies out, later ones leave for free.
    -1: never written, so that the host copy stays valid for good."""
    rank: Ints
    """[g] Order of time within an epoch, which may reach over the turn of the circle."""

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """Chunks by operation, [n] each, and the gaps."""

    live: Ints
    """Chunks of tensors alive at any moment of the operation."""
    needed: Ints
    """Chunks the operation cannot do without: its arguments, what is allocated in it, those of operations around it."""
    gaps: Gaps

    @property
    def peak(self) -> int:
        """Chunks an unlimited budget would hold."""
        return int(self.live.max())


def cover(n: int, start: Ints, stop: Ints, amount: Ints) -> Ints:
    """[n] Sum of `amount` over the ranges [start, stop) of a circle of n operations; start < n, stop <= start + n."""
    steps = np.zeros(n + 1, dtype=np.int64)
    np.add.at(steps, start, amount)
    np.add.at(steps, np.minimum(stop, n), -amount)
    wraps = stop > n
    np.add.at(steps, np.zeros(int(wraps.sum()), dtype=np.int64), amount[wraps])
    np.add.at(steps, stop[wraps] - n, -amount[wraps])
    return np.cumsum(steps[:-1])


def lifespans(trace: Trace) -> tuple[Ints, Ints]:
    """[m] The first row in which each tensor is alive, and one past its last, on the line of two iterations."""
    n = trace.operations
    stop = np.where(trace.tensor_died >= 0, trace.tensor_died + 1, n)
    return np.maximum(trace.tensor_born, 0), np.where(trace.wraps, stop + n, stop)


@dataclass(frozen=True, slots=True)
class _Segments:
    tensor: Ints
    first: Ints
    chunks: Ints
    of_use: Ints
    """For each (use, segment) pair: the use, and the segment."""
    segment: Ints


def _cut(trace: Trace, tails: bool) -> _Segments:
    """Cut tensors where a use begins or ends inside of them, and before a last chunk that is not full."""
    chunks = trace.chunks
    tailed = (chunks > 1) & (trace.tensor_bytes < chunks * trace.chunk_bytes) if tails else np.zeros_like(chunks, bool)
    whole = (trace.use_first == 0) & (trace.use_last == chunks[trace.use_tensor])
    split = np.zeros(trace.tensors, dtype=bool)
    split[trace.use_tensor[~whole]] = True
    simple = np.flatnonzero(~split)
    ends = np.flatnonzero(~split & tailed)  # these are two segments
    number, tail = np.full((2, trace.tensors), -1, dtype=np.int64)
    number[simple] = np.arange(len(simple))
    tail[ends] = np.arange(len(ends)) + len(simple)
    tensor, first = [simple, ends], [np.zeros(len(simple), dtype=np.int64), chunks[ends] - 1]
    size = [chunks[simple] - tailed[simple], np.ones(len(ends), dtype=np.int64)]
    plain = np.flatnonzero(~split[trace.use_tensor])
    both = np.flatnonzero(tail[trace.use_tensor] >= 0)
    of_use, segment = [plain, both], [number[trace.use_tensor[plain]], tail[trace.use_tensor[both]]]
    made = len(simple) + len(ends)
    rest = np.flatnonzero(split[trace.use_tensor])
    rest = rest[np.argsort(trace.use_tensor[rest], kind="stable")]
    for group in np.split(rest, np.flatnonzero(np.diff(trace.use_tensor[rest])) + 1) if len(rest) else []:
        t = int(trace.use_tensor[group[0]])
        begins, stops = trace.use_first[group], trace.use_last[group]
        edges = np.unique(np.concatenate([begins, stops, [0, chunks[t], chunks[t] - tailed[t]]]))
        tensor.append(np.full(len(edges) - 1, t))
        first.append(edges[:-1])
        size.append(np.diff(edges))
        low, high = np.searchsorted(edges, begins), np.searchsorted(edges, stops)
        count = high - low
        of_use.append(np.repeat(group, count))
        inside = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        segment.append(made + np.repeat(low, count) + inside)
        made += len(edges) - 1
    return _Segments(*(np.concatenate(parts) for parts in (tensor, first, size, of_use, segment)))


@dataclass(frozen=True, slots=True)
class _Events:
    """Births and uses of segments, ordered by segment and then by time."""

    segment: Ints
    time: Ints
    """The operation; from n on if it belongs to the next iteration."""
    last: Ints
    """The operation up to which this event or an earlier one of the segment needs it."""
    write: Ints
    heads: Ints
    """Where the segments begin."""

    def __len__(self) -> int:
        return len(self.segment)

    def spread(self, values: Ints) -> Ints:
        """What is known of each segment that has events, for each of its events."""
        return np.repeat(values, np.diff(np.append(self.heads, len(self))))


def _events(trace: Trace, cut: _Segments, begin: Ints) -> _Events:
    """Uses, and births, which are writes that last as long as the outermost operation."""
    n, born = trace.operations, trace.tensor_born
    outer = np.maximum.accumulate(trace.op_last)
    op = trace.use_op[cut.of_use]
    birth = np.flatnonzero(born[cut.tensor] >= 0)
    born_op = born[cut.tensor[birth]]
    segment = np.concatenate([birth, cut.segment])
    time = np.concatenate([born_op, op])
    last = np.concatenate([outer[born_op], trace.op_last[op]])
    write = np.concatenate([np.ones(len(birth), dtype=np.int64), trace.use_write[cut.of_use]])
    # Uses of the next iteration by a tensor that wraps around come after its birth.
    late = time < begin[cut.tensor[segment]]
    time, last = time + n * late, last + n * late
    order = np.lexsort((time, segment))
    segment, time, last, write = segment[order], time[order], last[order], write[order]
    stride = 4 * n + 4  # segments side by side on one line, so that running maxima do not mix
    last = np.maximum.accumulate(last + segment * stride) - segment * stride
    heads = np.ones(len(segment), dtype=bool)
    heads[1:] = segment[1:] != segment[:-1]
    return _Events(segment, time, last, write, np.flatnonzero(heads))


def _epochs(events: _Events, lives_on: Bools) -> tuple[Ints, Ints]:
    """Epoch and rank of what follows each event."""
    # An epoch is numbered by the count of writes so far; what follows the last write of a weight goes on after the
    # turn.
    heads, write = events.heads, events.write
    writes = np.cumsum(write)
    before = events.spread(writes[heads] - write[heads])
    total = events.spread(np.add.reduceat(write, heads) if len(events) else write)
    wrapped = (writes == before) & lives_on
    epoch = np.where(wrapped & (total > 0), before + total, writes)
    epoch = epoch + events.segment  # distinct between segments: each has at least its own number
    epoch = np.where(total == 0, np.where(lives_on, -1, epoch), epoch)
    _, renamed = np.unique(np.where(epoch < 0, -1, epoch), return_inverse=True)
    return np.where(epoch < 0, -1, renamed), np.arange(len(events)) + len(events) * wrapped


# Rows of gaps before they are put in order: segment, start, stop, returns, epoch, rank.
_Rows = tuple[Ints, Ints, Ints, Ints, Ints, Ints]


def _after_events(trace: Trace, cut: _Segments, events: _Events, end: Ints) -> _Rows:
    """From each event to the next of its segment, to its first in the next iteration, or to its death."""
    tensor = cut.tensor[events.segment]
    lives_on = trace.lasting[tensor]
    finals = np.zeros(len(events), dtype=bool)
    finals[events.heads - 1] = True  # before a head is a final; before the first, the last of all
    first_time = events.spread(events.time[events.heads])
    stop = np.where(
        ~finals, np.roll(events.time, -1), np.where(lives_on, first_time + trace.operations, end[tensor] + 1)
    )
    returns = (~finals | lives_on).astype(np.int64)
    return events.segment, events.last + 1, stop, returns, *_epochs(events, lives_on)


def _before_first_use(trace: Trace, cut: _Segments, events: _Events, epochs: int) -> _Rows:
    """Tensors that are older than the iteration and die in it: the time before their first use."""
    tensor, time = cut.tensor[events.segment[events.heads]], events.time[events.heads]
    older = events.heads[(trace.tensor_born[tensor] < 0) & ~trace.lasting[tensor] & (time > 0)]
    none = np.zeros_like(older)
    return events.segment[older], none, events.time[older], none + 1, epochs + np.arange(len(older)), none


def _never_used(trace: Trace, cut: _Segments, events: _Events, begin: Ints, end: Ints) -> _Rows:
    """Segments without any event: all their life."""
    idle = np.flatnonzero(~np.isin(np.arange(len(cut.tensor)), events.segment))
    tensor = cut.tensor[idle]
    stop = np.where(trace.lasting[tensor], begin[tensor] + trace.operations, end[tensor] + 1)
    none = np.zeros_like(idle)
    return idle, begin[tensor], stop, none, none - 1, none


def analyze_lifetimes(trace: Trace, *, tails: bool = True) -> Lifetimes:
    """Segments, gaps and needs of a trace. Time and memory grow as n + m + k log k.

    Parameters
    ----------
    trace
        One iteration.
    tails
        Whether a last chunk that is not full may be away alone; without it, where tensors move whole.
    """
    n = trace.operations
    begin, stop = lifespans(trace)
    end = stop - 1
    live = cover(n, begin, stop, trace.chunks)
    cut = _cut(trace, tails)
    events = _events(trace, cut, begin)
    after = _after_events(trace, cut, events, end)
    before = _before_first_use(trace, cut, events, int(after[4].max(initial=0)) + 1)
    rows = (after, before, _never_used(trace, cut, events, begin, end))
    gaps = _gaps(trace, cut, *(np.concatenate(column) for column in zip(*rows, strict=True)))
    return Lifetimes(live, live - cover(n, gaps.start, gaps.stop, gaps.chunks), gaps)


def _gaps(
    trace: Trace, cut: _Segments, segment: Ints, start: Ints, stop: Ints, returns: Ints, epoch: Ints, rank: Ints
) -> Gaps:
    """Those that are longer than nothing, on the circle and in order."""
    n = trace.operations
    turn = (start >= n) * n
    start, stop = start - turn, stop - turn
    kept = np.flatnonzero(stop > start)
    kept = kept[np.lexsort((start[kept], segment[kept]))]
    segment = segment[kept]
    filled = trace.tensor_bytes[cut.tensor] - cut.first * trace.chunk_bytes
    return Gaps(
        cut.tensor[segment],
        cut.first[segment],
        cut.chunks[segment],
        np.minimum(filled, trace.chunk_bytes)[segment],
        start[kept],
        stop[kept],
        returns[kept],
        epoch[kept],
        rank[kept],
    )
