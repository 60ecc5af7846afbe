"""Layers: which physical chunk each vTensor has, from one allocation event to the next.

Covers: which freed addresses stay mapped for the next tensor of their size (so that the same mappings repeat every
iteration), and the graph: layers, chunks, swapped-by edges.
Leaves: who is away when (``choosing.choice``, ``timing.schedule``).

A freed range that stays mapped costs nothing when a tensor of its size takes it over, but its chunks are held until
then. Keeping is paging again: of the ranges that could wait for their next tensor, those whose tensor comes last are
given up first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..iteration.lifetimes import Lifetimes, cover
from ..records.model import Device, Ints, Plan, Trace
from ..timing.moves import Moves

__all__ = ["Layer", "away_at_turn", "layers", "occupied", "ranges_to_keep"]


def occupied(trace: Trace, life: Lifetimes, moves: Moves) -> Ints:
    """[n] Chunks held during each operation, copies under way not counted twice."""
    n, gaps = trace.operations, life.gaps
    left = moves.out_last - moves.out_first
    away = cover(n, gaps.start[moves.out_gap], gaps.stop[moves.out_gap], left)
    need = np.where(moves.in_need < moves.in_op, moves.in_need + n, moves.in_need)
    early = cover(n, moves.in_op, need, moves.in_last - moves.in_first)
    return life.live - away + early


def ranges_to_keep(trace: Trace, device: Device, life: Lifetimes, moves: Moves) -> Ints:
    """[m] 1 if the addresses of the tensor should stay mapped when it is freed."""
    n, chunks = trace.operations, trace.chunks
    keep = np.zeros(trace.tensors, dtype=np.int64)
    gone = np.zeros(trace.tensors, dtype=bool)  # something of it is away when it dies: it is not handed on whole
    gone[life.gaps.tensor[moves.out_gap[life.gaps.returns[moves.out_gap] == 0]]] = True
    room = device.budget_chunks - occupied(trace, life, moves)
    births: list[list[int]] = [[] for _ in range(n)]
    deaths: list[list[int]] = [[] for _ in range(n)]
    for t in np.flatnonzero(trace.tensor_born >= 0).tolist():
        births[trace.tensor_born[t]].append(t)
    for t in np.flatnonzero((trace.tensor_died >= 0) & ~gone).tolist():
        deaths[trace.tensor_died[t]].append(t)
    # The next allocation of each size after each point, on two iterations in a row.
    of_size: dict[int, list[int]] = {}
    for row in [*range(n), *range(n, 2 * n)]:
        for t in births[row % n]:
            of_size.setdefault(int(chunks[t]), []).append(row)
    cached: dict[int, list[tuple[int, int]]] = {}  # size -> (row of the freeing, tensor), newest last
    held = 0
    position = dict.fromkeys(of_size, 0)
    for row in range(2 * n):
        for t in births[row % n]:
            size = int(chunks[t])
            position[size] += 1
            if cached.get(size):
                _, kept = cached[size].pop()
                held -= size
                if row >= n:
                    keep[kept] = 1
        spare = int(room[row % n])
        while held > spare:
            held -= _give_up(cached, of_size, position, row)
        for t in deaths[row % n]:
            size = int(chunks[t])
            upcoming = of_size.get(size, [])
            if position.get(size, 0) + len(cached.get(size, [])) < len(upcoming):
                cached.setdefault(size, []).append((row, t))
                held += size
    return keep


def _give_up(
    cached: dict[int, list[tuple[int, int]]], of_size: dict[int, list[int]], position: dict[int, int], row: int
) -> int:
    """Give up the range whose next tensor comes last; returns its chunks."""
    worst, when = -1, -1
    for size, waiting in cached.items():
        if waiting:
            k = position[size] + len(waiting) - 1
            upcoming = of_size[size][k] if k < len(of_size[size]) else row * 4 + 4
            if upcoming > when:
                worst, when = size, upcoming
    cached[worst].pop(0)
    return worst


@dataclass(frozen=True, slots=True)
class Layer:
    """The memory after one event; edges name (tensor, chunk of it)."""

    op: int
    event: str
    """``"alloc 12"``, ``"free 12"``, ``"leave 12[0:3]"``, ``"arrive 12[0:3]"``"""
    placed: tuple[tuple[int, int, int], ...]
    """(tensor, chunk of it, physical chunk) of what this event placed."""
    swapped_by: tuple[tuple[tuple[int, int], tuple[int, int]], ...]
    """Swapped-by edges: the vTensor that left last from a physical chunk, and the one that took it."""


def layers(trace: Trace, device: Device, life: Lifetimes, moves: Moves) -> Iterator[Layer]:
    """The layers of one iteration in the steady state, in order of events."""
    n, chunks = trace.operations, trace.chunks
    place: dict[tuple[int, int], int] = {}
    free = list(range(min(device.budget_chunks, int(chunks.sum())) - 1, -1, -1))
    left_by: dict[int, tuple[int, int]] = {}
    started = np.flatnonzero((trace.tensor_born < 0) | trace.wraps)
    tensor_of = life.gaps.tensor
    rows: list[list[tuple[int, str, int, int, int]]] = [[] for _ in range(n)]
    for k, op in enumerate(moves.out_op.tolist()):
        rows[op].append((0, "leave", int(tensor_of[moves.out_gap[k]]), int(moves.out_first[k]), int(moves.out_last[k])))
    for k, op in enumerate(moves.in_op.tolist()):
        rows[op].append((1, "arrive", int(tensor_of[moves.in_gap[k]]), int(moves.in_first[k]), int(moves.in_last[k])))
    for t, (born, died) in enumerate(zip(trace.tensor_born.tolist(), trace.tensor_died.tolist(), strict=True)):
        if born >= 0:
            rows[born].append((2, "alloc", t, 0, int(chunks[t])))
        if died >= 0:
            rows[died].append((3, "free", t, 0, int(chunks[t])))

    def put(
        t: int, first: int, last: int, edges: list[tuple[tuple[int, int], tuple[int, int]]]
    ) -> list[tuple[int, int, int]]:
        placed = []
        for c in range(first, last):
            if (t, c) in place or not free:
                continue
            chunk = free.pop()
            place[t, c] = chunk
            placed.append((t, c, chunk))
            if chunk in left_by:
                edges.append((left_by.pop(chunk), (t, c)))
        return placed

    for t in started.tolist():
        put(t, 0, int(chunks[t]), [])
    for cycle in range(2):  # the first only leads to the steady state
        for op in range(n):
            for _, event, t, first, last in sorted(rows[op]):
                edges: list[tuple[tuple[int, int], tuple[int, int]]] = []
                placed: list[tuple[int, int, int]] = []
                if event in ("leave", "free"):
                    for c in range(first, last):
                        chunk = place.pop((t, c), None)
                        if chunk is not None:
                            free.append(chunk)
                            if event == "leave":
                                left_by[chunk] = (t, c)
                            else:
                                left_by.pop(chunk, None)
                else:
                    placed = put(t, first, last, edges)
                if cycle == 1:
                    name = f"{event} {t}" if event in ("alloc", "free") else f"{event} {t}[{first}:{last}]"
                    yield Layer(op, name, tuple(placed), tuple(edges))


def away_at_turn(plan: Plan) -> list[tuple[int, int, int]]:
    """(tensor, first, last) of what is away when an iteration begins, in the steady state."""
    trace = plan.trace
    spans = [(op, 0, k) for k, op in enumerate(plan.out_op.tolist())]
    spans += [(op, 1, k) for k, op in enumerate(plan.in_op.tolist())]
    reborn = np.flatnonzero(trace.wraps).tolist()  # what left after the turn died without coming back
    spans += [(int(trace.tensor_born[t]), 2, t) for t in reborn]
    away: dict[int, np.ndarray[tuple[int], np.dtype[np.bool_]]] = {}
    chunks = trace.chunks
    for _, kind, k in sorted(spans):
        if kind == 2:
            away.pop(k, None)
            continue
        side = "in" if kind else "out"
        t, a, b = (int(getattr(plan, f"{side}_{f}")[k]) for f in ("tensor", "first", "last"))
        away.setdefault(t, np.zeros(int(chunks[t]), dtype=np.bool_))[a:b] = not kind
    result = []
    lives_on = trace.lasting | trace.wraps
    for t, flags in away.items():
        edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(np.int8), [0]])))
        result += [(t, int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True) if lives_on[t]]
    return result
