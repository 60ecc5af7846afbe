"""Is this plan right? Answered naively, vTensor by vTensor, and independently of how plans are made.

Covers: the rules below; the name of the first one that is broken.
Leaves: whether the plan is fast; whether its arrays fit together (``records.model``: no plan can be made where they do
not).
Shares no code with ``iteration.lifetimes``, ``choosing.choice``, ``timing.schedule`` and ``timing.simulate``.

Rules:

- ``leave-dead``, ``arrive-dead``: the tensor is alive then
- ``leave-absent``: what leaves is there
- ``leave-in-use``: no operation under way uses it
- ``arrive-resident``: what arrives is away
- ``need``: the operation an arrival is for uses it, and is the next to do so
- ``use-absent``: what is used is there
- ``over-budget``: the chunks held fit
- ``remade-trace``: but for what is recomputed, its rows, tensors and uses are those of the iteration as recorded
- ``drop-dead``, ``drop-dropped``, ``make-present``: what is dropped is there, and what is recomputed is not
- ``use-dropped``: what a recorded operation uses was recomputed before it
- ``dropped-at-turn``: nothing is dropped when the iteration ends
- ``prediction-peak``, ``prediction-traffic``, ``prediction-time``: the figures agree with the moves and with what is
  possible
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

import numpy as np

from .errors import InvalidPlanError
from .records.model import Bools, Plan, Remaking, Trace
from .records.rows import describe

__all__ = ["check", "validate"]

_Piece = tuple[int, int, int]
"""A tensor and its chunks [first, last)."""


def validate(plan: Plan) -> None:
    """Walk through a plan's iteration, twice, and check every rule of this module's list.

    Raises
    ------
    InvalidPlanError
        For the first rule that is broken.
    """
    state = _Walk(plan)
    state.iteration(strict=False)  # what is away when one begins is what one leaves away
    state.iteration(strict=True)
    if plan.remaking is not None:
        _same_iteration(plan, plan.remaking)
        _dropped(plan.remaking)
    _prediction(plan, state)


def check(plan: Plan) -> str:
    """Empty, or the broken rule and what breaks it."""
    try:
        validate(plan)
    except InvalidPlanError as error:
        return str(error)
    return ""


class _Walk:
    """Every vTensor of the trace, operation by operation."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        trace = plan.trace
        self.n = trace.operations
        self.chunks = trace.chunks.tolist()
        self.op_last = trace.op_last.tolist()
        self.uses: list[list[_Piece]] = [[] for _ in range(self.n)]
        self.uses_of: list[list[_Piece]] = [[] for _ in self.chunks]  # with the operation in place of the tensor
        for op, t, a, b, _written in _uses(trace):
            self.uses[op].append((t, a, b))
            self.uses_of[t].append((op, a, b))
        self.births: list[list[int]] = [[] for _ in range(self.n)]
        self.deaths: list[list[int]] = [[] for _ in range(self.n)]
        self.resident: dict[int, Bools] = {}  # of each tensor that is alive, which chunks are there
        self.held = 0
        self.once: set[int] = set()
        for t, (born, died) in enumerate(zip(trace.tensor_born.tolist(), trace.tensor_died.tolist(), strict=True)):
            if born >= 0:
                self.births[born].append(t)
            if died >= 0:
                self.deaths[died].append(t)
            if born < 0 or 0 <= died < born:
                self.begin(t)
            if (born < 0) != (died < 0):
                self.once.add(t)  # lives in this iteration only; the circle closes without it
        self.first_alive = set(self.resident)
        self.under_way: list[tuple[int, list[_Piece]]] = []
        self.peak = 0

    def begin(self, t: int) -> None:
        self.end(t)
        self.resident[t] = np.ones(self.chunks[t], dtype=np.bool_)
        self.held += self.chunks[t]

    def end(self, t: int) -> None:
        if t in self.resident:
            self.held -= int(self.resident.pop(t).sum())

    def iteration(self, *, strict: bool) -> None:
        plan = self.plan
        out_at: dict[int, list[int]] = defaultdict(list)
        in_at: dict[int, list[int]] = defaultdict(list)
        for k, op in enumerate(plan.out_op.tolist()):
            out_at[op].append(k)
        for k, op in enumerate(plan.in_op.tolist()):
            in_at[op].append(k)
        # One-off tensors begin every iteration as they did the first.
        for t in self.once:
            if t in self.first_alive:
                self.begin(t)
            else:
                self.end(t)
        self.under_way = []
        for op in range(self.n):
            self.operation(op, out_at[op], in_at[op], strict)

    def operation(self, op: int, leaves: list[int], arrivals: list[int], strict: bool) -> None:
        budget = self.plan.device.budget_chunks
        self.under_way = [(last, used) for last, used in self.under_way if last >= op]
        for k in leaves:
            self.leave(op, k, strict)
        for k in arrivals:
            self.arrival(op, k, strict)
        born = self.births[op]
        for t, a, b in self.uses[op]:
            if strict and t not in born and not self.resident[t][a:b].all():
                c = a + int(np.argmin(self.resident[t][a:b]))
                raise InvalidPlanError("use-absent", f"{self.name(op)} uses chunk {c} of tensor {t}, which is away")
        for t in born:
            self.begin(t)
        outermost = max([self.op_last[op]] + [last for last, _ in self.under_way])
        self.under_way.append((self.op_last[op], self.uses[op]))
        self.under_way.append((outermost, [(t, 0, self.chunks[t]) for t in born]))
        if strict:
            self.peak = max(self.peak, self.held)
            if self.held > budget:
                raise InvalidPlanError(
                    "over-budget", f"{self.held} chunks at {self.name(op)}, with a budget of {budget}"
                )
        for t in self.deaths[op]:
            self.end(t)

    def leave(self, op: int, k: int, strict: bool) -> None:
        plan, trace = self.plan, self.plan.trace
        t, a, b = (int(getattr(plan, f"out_{f}")[k]) for f in ("tensor", "first", "last"))
        if t not in self.resident:
            if strict:
                raise InvalidPlanError("leave-dead", f"tensor {t} is not alive at {self.name(op)}")
            return
        there = self.resident[t][a:b]
        if strict:
            what = f"chunks {a} to {b - 1} of tensor {t} leave at {self.name(op)}"
            if any(t == user and first < b and a < last for _, used in self.under_way for user, first, last in used):
                raise InvalidPlanError("leave-in-use", f"{what}, which is part of their user")
            # What lasts and is never used leaves once, and is away for good.
            idle = trace.lasting[t] and not any(first < b and a < last for _, first, last in self.uses_of[t])
            if not there.all() and not idle:
                raise InvalidPlanError("leave-absent", f"{what} and are not there")
        self.held -= int(there.sum())
        there[:] = False

    def arrival(self, op: int, k: int, strict: bool) -> None:
        t, a, b, need = (int(getattr(self.plan, f"in_{f}")[k]) for f in ("tensor", "first", "last", "need"))
        if t not in self.resident:
            if strict:
                raise InvalidPlanError("arrive-dead", f"tensor {t} is not alive at {self.name(op)}")
            return
        there = self.resident[t][a:b]
        if strict:
            what = f"chunks {a} to {b - 1} of tensor {t} arrive at {self.name(op)}"
            if there.any():
                raise InvalidPlanError("arrive-resident", f"{what} and are there")
            ahead = [(user - op) % self.n for user, first, last in self.uses_of[t] if first < b and a < last]
            if not ahead or min(ahead) != (need - op) % self.n:
                raise InvalidPlanError("need", f"{what} for operation {need}, and are next used elsewhere")
        self.held += b - a - int(there.sum())
        there[:] = True

    def name(self, op: int) -> str:
        return describe(self.plan.trace, op)


def _same_iteration(plan: Plan, remaking: Remaking) -> None:
    again, origin = plan.trace, remaking.origin
    rows, tensors = remaking.at.tolist(), remaking.tensor.tolist()
    recorded = {row: k for k, row in enumerate(rows)}
    for row, k in recorded.items():
        if again.names[again.op_name[row]] != origin.names[origin.op_name[k]]:
            raise InvalidPlanError("remade-trace", f"row {row} is not {describe(origin, k)}")
    for t, of in enumerate(tensors):
        if of >= 0 and again.tensor_bytes[t] != origin.tensor_bytes[of]:
            raise InvalidPlanError("remade-trace", f"tensor {t} has not the size of tensor {of} as recorded")
    uses = Counter((recorded[row], tensors[t], *of) for row, t, *of in _uses(again) if row in recorded)
    if uses != Counter(_uses(origin)):
        raise InvalidPlanError("remade-trace", "recorded operations use other tensors than were recorded")


def _uses(trace: Trace) -> Iterator[tuple[int, ...]]:
    """Operation, tensor, its chunks [first, last), whether they are written."""
    columns = (trace.use_op, trace.use_tensor, trace.use_first, trace.use_last, trace.use_write)
    return zip(*(column.tolist() for column in columns), strict=True)


def _dropped(remaking: Remaking) -> None:
    """Walk over what is recomputed, what is dropped, births, uses and deaths: in this order at each row."""
    origin, at = remaking.origin, remaking.at.tolist()
    events = [(row, 0, t) for row, t in zip(remaking.make_op.tolist(), remaking.make_tensor.tolist(), strict=True)]
    events += [(row, 1, t) for row, t in zip(remaking.drop_op.tolist(), remaking.drop_tensor.tolist(), strict=True)]
    events += [(at[op], 2, t) for t, op in enumerate(origin.tensor_born.tolist()) if op >= 0]
    events += [(at[op], 3, t) for op, t in zip(origin.use_op.tolist(), origin.use_tensor.tolist(), strict=True)]
    events += [(at[op], 4, t) for t, op in enumerate(origin.tensor_died.tolist()) if op >= 0]
    dead = {t for t, born in enumerate(origin.tensor_born.tolist()) if born >= 0 and not origin.wraps[t]}
    dropped: set[int] = set()
    for row, kind, t in sorted(events):
        what = f"tensor {t} as recorded, at row {row}"
        if kind == 0:
            if t not in dropped:
                raise InvalidPlanError("make-present", what)
            dropped.remove(t)
        elif kind == 1:
            if t in dead:
                raise InvalidPlanError("drop-dead", what)
            if t in dropped:
                raise InvalidPlanError("drop-dropped", what)
            dropped.add(t)
        elif kind == 2:
            dead.discard(t)
        elif kind == 3 and t in dropped:
            raise InvalidPlanError("use-dropped", what)
        elif kind == 4:
            dead.add(t)
    if dropped:
        raise InvalidPlanError("dropped-at-turn", f"tensor {min(dropped)} as recorded")


def _prediction(plan: Plan, state: _Walk) -> None:
    p = plan.prediction
    if not state.peak <= p.peak_chunks <= plan.device.budget_chunks:
        raise InvalidPlanError("prediction-peak", f"{p.peak_chunks} chunks predicted, at least {state.peak} are held")
    if p.in_chunks != plan.in_chunks or p.out_chunks > plan.out_chunks:
        raise InvalidPlanError("prediction-traffic", f"{p.out_chunks} out and {p.in_chunks} in predicted")
    if p.step_seconds < plan.trace.seconds * (1 - 1e-9):
        raise InvalidPlanError("prediction-time", "the step is predicted to be faster than computing alone")
