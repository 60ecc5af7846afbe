"""What a plan does in time: computing, the outgoing and the incoming lane, and the chunks between them.

Covers: step time, peak, waits and the busy times of the lanes in the steady state; running without a plan.
Leaves: how the moves were found (``schedule``), the lanes themselves (``lanes``). The rules of the native core
(``kernels/engine/``) in miniature:

- moves of an operation begin with it; copies of one lane follow each other, the two lanes run side by side;
- a leaving vTensor's chunk is free when its copy ends (at once, if it is clean);
- an arrival takes chunks as soon as there are any, and its copy then waits for the lane; arrivals keep their order;
- what returns comes after its own copy out (a processor's core calls that copy off instead, which is never slower);
- an operation begins when its arguments are there and has chunks for what it allocates; freed chunks are free at its
end.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from ..iteration.lifetimes import Lifetimes
from ..records.model import Device, Ints, Prediction, Trace
from .lanes import Lanes, Timeline
from .moves import Moves

__all__ = ["run_on_demand", "run_plan"]

_CYCLES = 2  # iterations that are run: what one leaves behind is how the next begins


@dataclass(frozen=True, slots=True)
class _Balance:
    """Chunks an iteration takes and gives beside its moves."""

    allocates: Ints
    """[n] Taken when the operation begins."""
    frees: Ints
    """[n] Given when it ends; what is away when its tensor dies gives nothing."""
    at_turn: int
    """Held when an iteration begins."""
    reborn: int
    """Of tensors that die in an iteration and are born in none: every iteration but the first begins with them anew."""
    never_again: set[int]
    """Leaves of weights nobody uses: they happen once."""


def _balance(trace: Trace, life: Lifetimes, moves: Moves) -> _Balance:
    n, chunks, gaps = trace.operations, trace.chunks, life.gaps
    born, dies = trace.tensor_born, trace.tensor_died >= 0
    allocates, frees = np.zeros((2, n), dtype=np.int64)
    np.add.at(allocates, born[born >= 0], chunks[born >= 0])
    np.add.at(frees, trace.tensor_died[dies], chunks[dies])
    frees[n - 1] += int(chunks[(born >= 0) & ~dies].sum())
    left, back = moves.out_last - moves.out_first, moves.in_last - moves.in_first
    stop, returns = gaps.stop[moves.out_gap], gaps.returns[moves.out_gap]
    lasting = trace.lasting[gaps.tensor[moves.out_gap]]
    at_death = (returns == 0) & ~lasting
    np.add.at(frees, (stop[at_death] - 1) % n, -left[at_death])
    # At the turn: what is alive but not away over it, and what came early for the next iteration.
    alive = int(chunks[(born < 0) | trace.wraps].sum())
    away = int(left[(stop > n) | ((stop == n) & (returns > 0))].sum())
    early = int(back[moves.in_op > moves.in_need].sum())
    reborn = int(chunks[(born < 0) & dies].sum())
    return _Balance(
        allocates, frees, alive - away + early, reborn, set(np.flatnonzero((returns == 0) & lasting).tolist())
    )


def run_plan(trace: Trace, device: Device, life: Lifetimes, moves: Moves) -> tuple[Prediction, Timeline]:
    """Run the moves for two iterations; the last one is reported.

    Raises
    ------
    LgmError
        If the moves leave an operation without chunks (then the plan is invalid).
    """
    # One loop over local lists, and whole: most of an analysis is spent in it, and a call costs as much as a row.
    n = trace.operations
    books = _balance(trace, life, moves)
    never = books.never_again
    left, back = moves.out_last - moves.out_first, moves.in_last - moves.in_first
    lanes = Lanes(device, device.budget_chunks - books.at_turn)

    # Moves are in the order of their operations: those of a row lie side by side.
    rows = np.arange(n + 1)
    out_from = np.searchsorted(moves.out_op, rows).tolist()
    in_from = np.searchsorted(moves.in_op, rows).tolist()
    by_need = np.argsort(moves.in_need, kind="stable")
    need_from = np.searchsorted(moves.in_need[by_need], rows).tolist()
    needs = by_need.tolist()
    out_count, in_count = left.tolist(), back.tolist()
    out_gap, in_gap = moves.out_gap.tolist(), moves.in_gap.tolist()
    gone = [0.0] * len(life.gaps)  # when the last copy out for each ends
    out_size, in_size = moves.out_bytes.tolist(), moves.in_bytes.tolist()
    wraps = (moves.in_op > moves.in_need).tolist()
    seconds, allocate, free = (trace.op_ns / 1e9).tolist(), books.allocates.tolist(), books.frees.tolist()
    now, began = 0.0, 0.0
    line = Timeline()
    begins, waits, held, budget = line.begin, line.wait, line.held, device.budget_chunks
    leaving, pending, done = lanes.leaving, lanes.pending, lanes.done
    m = len(in_count)
    for cycle in range(_CYCLES):
        reported = cycle == _CYCLES - 1
        began = now
        lanes.log = line if reported else None
        lanes.least = budget
        for row in range(n):
            arrived, moving = now, 0.0
            if leaving and leaving[0][0] <= now:
                lanes.advance(now)
            for k in range(out_from[row], out_from[row + 1]):
                if k in never and cycle > 0:
                    continue
                count = out_count[k]
                if out_size[k]:
                    lanes.leave(now, count, out_size[k], k)
                    gone[out_gap[k]] = lanes.out_free
                else:
                    lanes.free += count
                cost = out_size[k] * device.tax + count * device.switch
                now += cost
                moving += cost
            for k in range(in_from[row], in_from[row + 1]):
                each = in_size[k] / in_count[k] / device.in_speed + device.latency
                pending.append([in_count[k], each, cycle * m + k, gone[in_gap[k]]])
                cost = in_size[k] * device.tax + in_count[k] * device.switch
                now += cost
                moving += cost
            if pending:
                lanes.pump(now)
            for k in needs[need_from[row] : need_from[row + 1]]:
                key = (cycle - wraps[k]) * m + k
                if key < 0:
                    continue  # for the first iteration it is there
                if key not in done:
                    now = lanes.wait_for_arrival(now, key)
                now = max(now, done.pop(key))
            wanted = allocate[row] + (books.reborn if row == 0 and cycle > 0 else 0)
            if wanted:
                if lanes.free < wanted or (leaving and leaving[0][0] <= now):
                    now = lanes.wait_for_chunks(now, wanted)
                lanes.free -= wanted
            lanes.least = min(lanes.least, lanes.free)
            if reported:
                begins.append(now - began)
                waits.append(max(now - arrived - moving, 0.0))
                held.append(budget - lanes.free)
            now += seconds[row]
            if leaving and leaving[0][0] <= now:
                lanes.advance(now)
            lanes.free += free[row]
            if pending:
                lanes.pump(now)
    line.out = [(a - began, b - began, k, c) for a, b, k, c in line.out]
    line.back = [(a - began, b - began, k % max(m, 1), c) for a, b, k, c in line.back]
    peak = budget - lanes.least
    return Prediction(now - began, peak, sum(waits), int(left[moves.out_bytes > 0].sum()), int(back.sum())), line


class _Demand:
    """Memory without a plan: what is missing comes when it is used, and the longest unused leaves."""

    def __init__(self, trace: Trace, device: Device, whole: bool) -> None:
        self.device, self.whole = device, whole
        self.lanes = Lanes(device, device.budget_chunks)
        self.sizes = trace.chunks.tolist()
        self.mean = [b / c for b, c in zip(trace.tensor_bytes.tolist(), self.sizes, strict=True)]  # bytes of a chunk
        self.resident: OrderedDict[int, int] = OrderedDict()  # tensor -> chunks, longest unused first
        self.slots: dict[int, int] = {}  # tensor -> chunks with a valid copy in the host store
        self.out = self.back = 0
        self.moving = 0.0  # seconds of computing that moves took

    def make_room(self, now: float, chunks: int, pinned: set[int]) -> float:
        """The time at which `chunks` are free, after others than `pinned` have left for them."""
        lanes, resident, slots = self.lanes, self.resident, self.slots
        under_way = sum(int(b[2]) for b in lanes.leaving)
        for t in list(resident):
            if lanes.free + under_way >= chunks:
                break
            if t in pinned or resident[t] == 0:
                continue
            count = resident[t] if self.whole else min(resident[t], chunks - lanes.free - under_way)
            away = self.sizes[t] - resident[t]
            clean = min(count, max(0, slots.get(t, 0) - away))
            lanes.free += clean
            if count > clean:
                lanes.leave(now, count - clean, round(self.mean[t] * (count - clean)), 0)
                under_way += count - clean
                self.out += count - clean
            slots[t] = max(slots.get(t, 0), away + count)
            resident[t] -= count
            now += self.cost(count, self.mean[t] * (count - clean))
        return lanes.wait_for_chunks(now, chunks)

    def cost(self, chunks: int, copied: float) -> float:
        """Seconds of computing that moving so many chunks takes, of which so many bytes are copied."""
        seconds = copied * self.device.tax + chunks * self.device.switch
        self.moving += seconds
        return seconds

    def allocate(self, now: float, t: int, pinned: set[int]) -> float:
        now = self.make_room(now, self.sizes[t], pinned)
        self.lanes.free -= self.sizes[t]
        self.resident[t] = self.sizes[t]
        return now

    def use(self, now: float, t: int, write: bool, pinned: set[int]) -> float:
        """The time at which all of it is there."""
        lanes, resident = self.lanes, self.resident
        if t not in resident:  # older than the trace: made now, unless the host has it
            resident[t] = 0
            if not self.slots.get(t):
                now = self.allocate(now, t, pinned)
        missing = self.sizes[t] - resident[t]
        if missing:
            now = self.make_room(now, missing, pinned)
            lanes.free -= missing
            each = self.mean[t] / self.device.in_speed + self.device.latency
            lanes.in_free = max(lanes.in_free, now) + missing * each
            now = lanes.in_free + self.cost(missing, missing * self.mean[t])
            resident[t] = self.sizes[t]
            self.back += missing
        resident.move_to_end(t)
        if write:
            self.slots[t] = 0
        return now

    def free(self, t: int) -> None:
        self.lanes.free += self.resident.pop(t, 0)
        self.slots.pop(t, None)


def run_on_demand(trace: Trace, device: Device, *, whole: bool = False) -> Prediction:
    """No plan: what is missing comes when it is needed, and the longest unused leaves (LRU).

    Parameters
    ----------
    whole
        Victims are whole tensors; else exactly as many vTensors leave as are needed.
    """
    n = trace.operations
    uses: list[list[tuple[int, bool]]] = [[] for _ in range(n)]
    columns = (trace.use_op.tolist(), trace.use_tensor.tolist(), trace.use_write.tolist())
    for op, tensor, write in zip(*columns, strict=True):
        uses[op].append((tensor, bool(write)))
    births: list[list[int]] = [[] for _ in range(n)]
    deaths: list[list[int]] = [[] for _ in range(n)]
    for t, (b, d) in enumerate(zip(trace.tensor_born.tolist(), trace.tensor_died.tolist(), strict=True)):
        if b >= 0:
            births[b].append(t)
            if d < 0:
                deaths[n - 1].append(t)
        if d >= 0:
            deaths[d].append(t)
    memory = _Demand(trace, device, whole)
    lanes = memory.lanes
    seconds = (trace.op_ns / 1e9).tolist()
    now = began = waited = 0.0
    peak = 0
    for _ in range(_CYCLES):
        began, waited, memory.moving, memory.out, memory.back = now, 0.0, 0.0, 0, 0
        for row in range(n):
            lanes.advance(now)
            arrived = now
            pinned = {t for t, _ in uses[row]} | set(births[row])
            for t, write in uses[row]:
                now = memory.use(now, t, write, pinned)
            for t in births[row]:
                now = memory.allocate(now, t, pinned)
                memory.slots[t] = 0
                memory.resident.move_to_end(t)
            peak = max(peak, device.budget_chunks - lanes.free)
            waited += now - arrived
            now += seconds[row]
            lanes.advance(now)
            for t in deaths[row]:
                memory.free(t)
    return Prediction(now - began, peak, max(waited - memory.moving, 0.0), memory.out, memory.back)
