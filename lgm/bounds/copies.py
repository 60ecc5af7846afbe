"""What no plan that only copies can beat.

Covers: the least step time for given traffic, and for any traffic.
Leaves: how near a plan comes (``timing.simulate``).
"""

from __future__ import annotations

import numpy as np

from ..iteration.lifetimes import Gaps, Lifetimes
from ..records.model import Device, Ints, Trace
from ..records.rows import nominal
from ..timing.moves import Moves

__all__ = ["least_seconds", "least_seconds_in_windows"]


def least_seconds(trace: Trace, device: Device, moves: Moves) -> float:
    """max(computing, bytes out / speed, bytes in / speed): the three run side by side at best."""
    out = float(moves.out_bytes.sum()) / device.out_speed
    back = float(moves.in_bytes.sum()) / device.in_speed
    return max(trace.seconds, out, back)


def least_seconds_in_windows(trace: Trace, device: Device, life: Lifetimes) -> float:
    """What no plan of any traffic can beat, because copies have to happen when they can.

    Cut the iteration into windows. What must be away at an operation and could not be copied out before the window it
    lies in, is copied out within it; what must be away at one and is needed again before its window ends, comes back
    within it. So a window takes at least the longest of its computing, its bytes out / speed and its bytes in / speed,
    and the iteration at least their sum, whichever way it is cut: the best cut is a longest path.

    Time grows with the square of the number of operations at which a gap begins or ends. Tensors that end within a
    chunk count as if only their smallest pieces had been moved, so that the bound holds for any choice.
    """
    n, gaps = trace.operations, life.gaps
    if not len(gaps):
        return trace.seconds
    wraps = gaps.stop > n
    start = np.concatenate([gaps.start, np.zeros(int(wraps.sum()), dtype=np.int64)])
    stop = np.concatenate([np.minimum(gaps.stop, n), gaps.stop[wraps] - n])
    # From when on it can be copied out (-1: before the iteration), and when it must be back (n: not in it).
    leave = np.concatenate([_earliest_copy(trace, gaps), np.full(int(wraps.sum()), -1)])
    due = np.concatenate([np.where(wraps | (gaps.returns == 0), n, gaps.stop), gaps.stop[wraps] - n])
    due[len(gaps) :][gaps.returns[wraps] == 0] = n
    held = gaps.chunks * trace.chunk_bytes  # what being away sets free, and what of it no copy carries
    padding = np.maximum((gaps.first + gaps.chunks) * trace.chunk_bytes - trace.tensor_bytes[gaps.tensor], 0)
    held, padding = (np.concatenate([each, each[wraps]]) for each in (held, padding))

    # Rows: runs of operations between which no gap begins or ends. `edges[k]` is the first operation of row k.
    edges = np.unique(np.concatenate([[0], start, start + 1, stop, due + 1, [n]]))
    edges = edges[edges <= n]
    rows = len(edges) - 1
    row_of = np.searchsorted(edges, np.arange(n), side="right") - 1
    away = np.full(rows, np.iinfo(np.int64).min // 4)
    np.maximum.at(away, row_of, life.live - device.budget_chunks)
    away *= trace.chunk_bytes
    time = nominal(trace)[edges]
    begin, end = np.searchsorted(edges, start), np.searchsorted(edges, stop)
    leave = np.where(leave < 0, -1, np.searchsorted(edges, np.maximum(leave, 0)))
    back = np.where(due >= n, rows + 1, np.searchsorted(edges, np.minimum(due, n - 1) + 1))

    # `must[r]`: bytes that are away in row r and are back before the window ends; grows as its end moves on.
    may = np.zeros(rows + 1, dtype=np.int64)
    np.add.at(may, begin, held)
    np.add.at(may, end, -held)
    must = away - np.cumsum(may)[:rows]
    opens, closes, returns = (_by_row(at, rows) for at in (begin, end, back))
    gone, padded = np.zeros((2, rows + 1), dtype=np.int64)  # of gaps open in the row, by where they can leave
    out = np.zeros(rows, dtype=np.int64)
    longest = np.zeros(rows + 1)
    for b in range(1, rows + 1):
        row = b - 1
        for sign, which in ((-1, closes[row]), (1, opens[row])):
            np.add.at(gone, leave[which] + 1, sign * held[which])
            np.add.at(padded, leave[which] + 1, sign * padding[which])
        # For a window that begins at a, what could leave before counts as gone; of the rest, what pads a chunk.
        rest = away[row] - np.cumsum(gone) - (padded.sum() - np.cumsum(padded))
        np.maximum(out[:b], rest[:b], out=out[:b])
        for g in returns[b].tolist():
            must[begin[g] : end[g]] += held[g] - padding[g]
        need = np.maximum.accumulate(must[:b][::-1])[::-1]
        seconds = np.maximum(time[b] - time[:b], np.maximum(out[:b] / device.out_speed, need / device.in_speed))
        longest[b] = float((longest[:b] + seconds).max())
    return float(longest[rows])


def _earliest_copy(trace: Trace, gaps: Gaps) -> Ints:
    """[g] The first operation at which the host may get its copy: where the gap's epoch opens; -1: before all."""
    order = np.lexsort((gaps.rank, gaps.epoch))
    epoch = gaps.epoch[order]
    heads = np.flatnonzero(np.concatenate([[True], epoch[1:] != epoch[:-1]]))
    opened = np.empty(len(gaps), dtype=np.int64)
    opened[order] = np.repeat(gaps.start[order][heads], np.diff(np.append(heads, len(order))))
    older = (gaps.start == 0) & (trace.tensor_born[gaps.tensor] < 0)
    return np.where((gaps.epoch < 0) | (opened > gaps.start) | older, -1, opened)


def _by_row(at: Ints, rows: int) -> list[Ints]:
    """For each row and the two after the last, which entries of `at` name it."""
    order = np.argsort(at, kind="stable")
    return np.split(order, np.searchsorted(at[order], np.arange(1, rows + 2)))
