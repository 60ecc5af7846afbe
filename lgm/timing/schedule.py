"""When each copy begins: out as soon as the gap opens, in as late as is safe, or sooner where nobody needs the room.

Covers: moves with their operations, for a given choice of gaps.
Leaves: the choice itself (``choosing.choice``), what moves are (``moves``), and what they cost in time (``simulate``).

The incoming lane is filled from the last deadline backwards (earliest-deadline order in reverse): each arrival ends
when its vTensor is needed or when the next arrival must begin, whichever is earlier. It may begin only where the budget
has room for it until it is needed (a chunk that leaves is room from the end of its copy on); what has none comes later,
and is waited for. Room is given to the latest deadlines first, so deadlines must be near the truth: where the lanes are
busier than the processor, an iteration without waits is far too short, and the last arrivals would take the room of all
before them. ``settling`` therefore schedules again by the times a simulation found.

That is late, not best: simulated times contain waits, and an arrival that comes just in time for a late operation keeps
it late. So what room is left is given away ("packed"): in the order in which they begin, arrivals move forward to where
the lane is free and the room lasts.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from ..iteration.lifetimes import Lifetimes, cover
from ..records.model import Device, Floats, Ints, Trace
from ..records.rows import nominal
from ..switches import Timing
from .moves import Moves, bytes_in

__all__ = ["schedule"]

_INSTANT = 1e-12  # seconds: what ends when an operation begins has ended
_EARLY = 2.0  # copies of one chunk, by which an arrival should end before it is needed
_PARTS = 16  # of a copy out, that are free one after the other


def _leaves(trace: Trace, life: Lifetimes, used: Ints) -> tuple[Ints, ...]:
    gaps = life.gaps
    # In each epoch the first use of a chunk's gap copies; later gaps leave for free as far as earlier ones reached.
    order = np.lexsort((gaps.rank, gaps.epoch))
    epoch, amount = gaps.epoch[order], used[order]
    stride = int(amount.max(initial=0)) + 1
    reach = np.maximum.accumulate(amount + (epoch + 1) * stride) - (epoch + 1) * stride
    before = np.concatenate([[0], reach[:-1]])
    before[np.concatenate([[True], epoch[1:] != epoch[:-1]])] = 0
    clean = np.zeros(len(gaps), dtype=np.int64)
    clean[order] = np.where(epoch < 0, amount, np.minimum(before, amount))
    rows = []
    for low, high, dirty in ((np.zeros_like(clean), clean, False), (clean, used, True)):
        gap = np.flatnonzero(high > low)
        first, last = gaps.first[gap] + low[gap], gaps.first[gap] + high[gap]
        size = bytes_in(trace, gaps.tensor[gap], first, last) if dirty else np.zeros_like(gap)
        rows.append((gaps.start[gap], gap, first, last, size))
    columns = [np.concatenate(column) for column in zip(*rows, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    return tuple(column[order] for column in columns)


def schedule(
    trace: Trace,
    device: Device,
    life: Lifetimes,
    used: Ints,
    *,
    begin: Floats | None = None,
    timing: Timing = "packed",
) -> Moves:
    """Decide when the moves of a choice begin.

    Parameters
    ----------
    used
        [g] Chunks of each gap that are away; the first of its segment.
    begin
        [n + 1] Seconds at which operations are expected to begin, and the iteration to end; without it, as if nothing
        ever waited.
    timing
        When arrivals begin. ``"on_demand"``: when they are needed (a baseline); ``"just_in_time"``: as late as is safe;
        ``"packed"``: sooner than that where the room that is left allows it.
    """
    n, gaps = trace.operations, life.gaps
    out = _leaves(trace, life, used)
    back = np.flatnonzero((used > 0) & (gaps.returns > 0))
    first, amount, stop = gaps.first[back], used[back], gaps.stop[back]
    if timing == "on_demand":
        need = stop % n
        size = bytes_in(trace, gaps.tensor[back], first, first + amount)
        order = np.argsort(need, kind="stable")
        columns = (need, back, first, first + amount, size, need)
        return Moves(*out, *(column[order] for column in columns))

    if begin is None:
        begin = nominal(trace)
    room = device.budget_chunks - (life.live - cover(n, gaps.start, gaps.stop, used))
    room -= np.minimum(_under_way(n, device, begin, out, gaps.stop), np.maximum(room, 0))
    size = bytes_in(trace, gaps.tensor[back], first, first + amount)
    each = size / device.in_speed / np.maximum(amount, 1) + device.latency
    safety = _EARLY * (trace.chunk_bytes / device.in_speed + device.latency) + device.jitter
    rows = _backwards(n, begin, room, gaps.start[back], stop, amount, each, safety)
    if timing == "packed":
        rows = _packed(n, begin, room, gaps.start[back], each, rows)
    moves = np.array(rows, dtype=np.int64).reshape(-1, 4)  # index into back, row, first, last (within the used chunks)
    which = moves[:, 0]
    gap = back[which]
    low, high = gaps.first[gap] + moves[:, 2], gaps.first[gap] + moves[:, 3]
    need = gaps.stop[gap] % n
    at = moves[:, 1] % n
    columns = (at, gap, low, high, bytes_in(trace, gaps.tensor[gap], low, high), need)
    # Those for the next iteration come after those for this one.
    order = np.lexsort((np.where(need < at, need + n, need), at))
    return Moves(*out, *(column[order] for column in columns))


def _under_way(n: int, device: Device, begin: Floats, out: tuple[Ints, ...], stop: Ints) -> Ints:
    """[n] Chunks that are away, but still being copied out when an operation begins: nobody can have them yet."""
    op, gap, first, last, size = (column[out[4] > 0] for column in out)
    count = last - first
    each = size / device.out_speed / np.maximum(count, 1) + device.latency
    # The lane takes one after the other: each begins when its operation does, or when all before it have ended.
    busy = np.cumsum(each * count)
    start = np.maximum.accumulate(begin[op] - (busy - each * count)) + (busy - each * count)
    # Its chunks are free one after the other; of a long one, some at a time.
    parts = np.minimum(count, _PARTS)
    part = np.arange(int(parts.sum())) - np.repeat(np.cumsum(parts) - parts, parts) + 1
    count_each, parts_each = np.repeat(count, parts), np.repeat(parts, parts)
    free = count_each * part // parts_each
    end = np.repeat(start, parts) + np.repeat(each, parts) * free
    two_turns = np.concatenate([begin[:-1], begin[:-1] + begin[-1]])
    over = np.minimum(np.searchsorted(two_turns, end - _INSTANT), np.repeat(stop[gap], parts))
    over = np.maximum(over, np.repeat(op, parts))  # rows of no time end before it begins
    freed = free - count_each * (part - 1) // parts_each
    change = np.bincount(op, count, 2 * n + 1) - np.bincount(over, freed, 2 * n + 1)
    away = np.cumsum(change[:-1]).astype(np.int64)
    return np.asarray(away[:n] + away[n:], dtype=np.int64)


def _backwards(
    n: int,
    begin: Floats,
    room: Ints,
    start: Ints,
    stop: Ints,
    amount: Ints,
    each: Floats,
    safety: float,
) -> list[tuple[int, int, int, int]]:
    """Index, row (from n on: of the next iteration), first and last chunk of arrivals, as late as is safe."""
    total = float(begin[-1])
    deadline = begin[stop % n]
    order = np.argsort(-deadline, kind="stable").tolist()
    deadlines, lengths = deadline.tolist(), (amount * each).tolist()
    lane = np.inf  # first round: how far the first arrivals reach back into the iteration before
    for k in order:
        lane = min(lane, deadlines[k] - safety) - lengths[k]
    lane = total + min(0.0, lane)
    rows: list[tuple[int, int, int, int]] = []
    starts, stops, amounts, begins = start.tolist(), stop.tolist(), amount.tolist(), begin.tolist()
    for k in order:
        lane = min(lane, deadlines[k] - safety) - lengths[k]
        # Rows on one line: [start + 1, stop); the copy may begin in the iteration before the one that needs it.
        turns, s, e = stops[k] // n, starts[k], stops[k]
        at = lane + turns * total
        whole, part = divmod(at, total)
        row = bisect_right(begins, part) - 1 + int(whole) * n
        row = min(max(row, s + 1), e)
        left, high = amounts[k], amounts[k]
        while left > 0:
            window = _window(room, row, e, n)
            least = int(window.min()) if len(window) else left
            part_size = min(least, left)
            if part_size > 0:
                _take(room, row, e, n, part_size)
                rows.append((k, row, high - part_size, high))
                high -= part_size
                left -= part_size
            elif left > 0:
                row += int((window <= 0).nonzero()[0][-1]) + 1
    return rows


def _packed(
    n: int, begin: Floats, room: Ints, start: Ints, each: Floats, rows: list[tuple[int, int, int, int]]
) -> list[tuple[int, int, int, int]]:
    """The same arrivals, each as soon as the lane is free, its gap is open and `room` lasts until it was to begin."""
    lane, moved = 0.0, []
    begins, starts, lengths = begin.tolist(), start.tolist(), each.tolist()
    for k, row, low, high in sorted(rows, key=lambda move: move[1] % n):
        turn, at = row - row % n, row % n
        free = bisect_right(begins, lane) - 1
        first = min(max(free, starts[k] + 1 - turn, 0), at)
        full = (room[first:at] < high - low).nonzero()[0]
        first += int(full[-1]) + 1 if len(full) else 0
        room[first:at] -= high - low
        lane = max(lane, begins[first]) + (high - low) * lengths[k]
        moved.append((k, turn + first, low, high))
    return moved


def _window(room: Ints, a: int, b: int, n: int) -> Ints:
    if a >= n:
        return room[a - n : b - n]
    return room[a:b] if b <= n else np.concatenate([room[a:], room[: b - n]])


def _take(room: Ints, a: int, b: int, n: int, amount: int) -> None:
    if a >= n:
        a, b = a - n, b - n
    room[a : min(b, n)] -= amount
    if b > n:
        room[: b - n] -= amount
