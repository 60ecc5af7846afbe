"""Is this plan right? Answered naively, vTensor by vTensor, and independently of how plans are made.

Covers: the rules below; the name of the first one that is broken.
Leaves: whether the plan is fast. Shares no code with ``lifetimes``, ``choice``, ``schedule`` and ``simulate``.

Rules:

- ``arrays``: lengths agree
- ``order``: moves are in the order of operations
- ``operation``, ``tensor``: indices exist
- ``chunks``: pieces lie inside their tensor and are not empty
- ``keep``: flags are 0 or 1
- ``reservation``: it is within the budget
- ``leave-dead``, ``arrive-dead``: the tensor is alive then
- ``leave-absent``: what leaves is there
- ``leave-in-use``: no operation under way uses it
- ``arrive-resident``: what arrives is away
- ``need``: the operation an arrival is for uses it, and is the next to do so
- ``use-absent``: what is used is there
- ``over-budget``: the chunks held fit
- ``cyclic``: the iteration ends as it began
- ``prediction-peak``, ``prediction-traffic``, ``prediction-time``: the figures agree with the moves and with what is
  possible
"""

from __future__ import annotations

from collections import defaultdict

from .model import LgmError, Plan

__all__ = ["InvalidPlanError", "check", "validate"]


class InvalidPlanError(LgmError):
    """A plan breaks a rule; `rule` is its name."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule


def validate(plan: Plan) -> None:
    """Raise InvalidPlanError for the first rule that is broken."""
    _static(plan)
    state = _Walk(plan)
    state.iteration(strict=False)
    before = state.resident_now()
    state.iteration(strict=True)
    if state.resident_now() != before:
        raise InvalidPlanError("cyclic", "the iteration ends with other vTensors resident than it began with")
    _prediction(plan, state)


def check(plan: Plan) -> str:
    """Empty, or the broken rule and what breaks it."""
    try:
        validate(plan)
    except InvalidPlanError as error:
        return str(error)
    return ""


def _static(plan: Plan) -> None:
    trace = plan.trace
    n, m = trace.operations, trace.tensors
    chunks = trace.chunks.tolist()
    for side in ("out", "in"):
        op, tensor, first, last = (getattr(plan, f"{side}_{f}").tolist() for f in ("op", "tensor", "first", "last"))
        if len({len(op), len(tensor), len(first), len(last)}) != 1 or len(plan.in_need) != len(plan.in_op):
            raise InvalidPlanError("arrays", f"the arrays of {side} moves differ in length")
        for k in range(len(op)):
            what = f"{side} move {k}"
            if not 0 <= op[k] < n or (side == "in" and not 0 <= plan.in_need[k] < n):
                raise InvalidPlanError("operation", f"{what} names an operation that is not in the trace")
            if k and op[k] < op[k - 1]:
                raise InvalidPlanError("order", f"{what} stands after a later one")
            if not 0 <= tensor[k] < m:
                raise InvalidPlanError("tensor", f"{what} names a tensor that is not in the trace")
            if not 0 <= first[k] < last[k] <= chunks[tensor[k]]:
                raise InvalidPlanError("chunks", f"{what} moves [{first[k]}, {last[k]}) of {chunks[tensor[k]]} chunks")
    if len(plan.keep) != m:
        raise InvalidPlanError("arrays", "keep has not one entry for each tensor")
    if set(plan.keep.tolist()) - {0, 1}:
        raise InvalidPlanError("keep", "an entry is neither 0 nor 1")
    if not 0 <= plan.reservation < plan.device.budget_chunks:
        raise InvalidPlanError("reservation", f"{plan.reservation} chunks of {plan.device.budget_chunks}")


class _Walk:
    """Every vTensor of the trace, operation by operation."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        trace = plan.trace
        self.n = trace.operations
        self.chunks = trace.chunks.tolist()
        self.uses: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for op, t, a, b in zip(trace.use_op, trace.use_tensor, trace.use_first, trace.use_last, strict=True):
            self.uses[int(op)].append((int(t), int(a), int(b)))
        self.births: dict[int, list[int]] = defaultdict(list)
        self.deaths: dict[int, list[int]] = defaultdict(list)
        self.alive: set[int] = set()
        self.once: set[int] = set()
        for t, (born, died) in enumerate(zip(trace.tensor_born.tolist(), trace.tensor_died.tolist(), strict=True)):
            if born >= 0:
                self.births[born].append(t)
            if died >= 0:
                self.deaths[died].append(t)
            if born < 0 or 0 <= died < born:
                self.alive.add(t)
            if (born < 0) != (died < 0):
                self.once.add(t)  # lives in this iteration only; the circle closes without it
        self.first_alive = set(self.alive)
        self.resident = {(t, c) for t in self.alive for c in range(self.chunks[t])}
        self.forever = {
            (t, c) for t in range(trace.tensors) if trace.tensor_born[t] < 0 and trace.tensor_died[t] < 0
            for c in range(self.chunks[t])
        }  # fmt: skip
        for used in self.uses.values():
            self.forever -= {(t, c) for t, a, b in used for c in range(a, b)}
        self.under_way: list[tuple[int, list[tuple[int, int, int]]]] = []
        self.peak = 0

    def resident_now(self) -> set[tuple[int, int]]:
        return {v for v in self.resident if v[0] not in self.once}

    def iteration(self, *, strict: bool) -> None:
        plan = self.plan
        out_at: dict[int, list[int]] = defaultdict(list)
        in_at: dict[int, list[int]] = defaultdict(list)
        for k, op in enumerate(plan.out_op.tolist()):
            out_at[op].append(k)
        for k, op in enumerate(plan.in_op.tolist()):
            in_at[op].append(k)
        # One-off tensors begin every iteration as they did the first.
        for t in self.once & self.first_alive:
            self.alive.add(t)
            self.resident |= {(t, c) for c in range(self.chunks[t])}
        for t in self.once - self.first_alive:
            self.alive.discard(t)
            self.resident -= {(t, c) for c in range(self.chunks[t])}
        self.under_way = []
        for op in range(self.n):
            self.operation(op, out_at[op], in_at[op], strict)

    def operation(self, op: int, leaves: list[int], arrivals: list[int], strict: bool) -> None:
        plan, trace = self.plan, self.plan.trace
        name = trace.describe(op)
        self.under_way = [(last, used) for last, used in self.under_way if last >= op]
        busy = {(t, c) for _, used in self.under_way for t, a, b in used for c in range(a, b)}
        for k in leaves:
            t = int(plan.out_tensor[k])
            for c in range(int(plan.out_first[k]), int(plan.out_last[k])):
                if strict and t not in self.alive:
                    raise InvalidPlanError("leave-dead", f"tensor {t} is not alive at {name}")
                if strict and (t, c) in busy:
                    raise InvalidPlanError(
                        "leave-in-use", f"chunk {c} of tensor {t} leaves at {name}, which is part of its user"
                    )
                if strict and (t, c) not in self.resident and (t, c) not in self.forever:
                    raise InvalidPlanError("leave-absent", f"chunk {c} of tensor {t} leaves at {name} and is not there")
                self.resident.discard((t, c))
        for k in arrivals:
            self.arrival(op, k, strict)
        used = self.uses[op] + [(t, 0, self.chunks[t]) for t in self.births[op]]
        for t, a, b in self.uses[op]:
            for c in range(a, b):
                if strict and (t, c) not in self.resident and t not in self.births[op]:
                    raise InvalidPlanError("use-absent", f"{name} uses chunk {c} of tensor {t}, which is away")
        for t in self.births[op]:
            self.alive.add(t)
            self.resident |= {(t, c) for c in range(self.chunks[t])}
        outermost = max([int(trace.op_last[op])] + [last for last, _ in self.under_way])
        self.under_way.append((int(trace.op_last[op]), self.uses[op]))
        self.under_way.append((outermost, [u for u in used if u[0] in self.births[op]]))
        if strict:
            self.peak = max(self.peak, len(self.resident))
            if len(self.resident) > plan.device.budget_chunks:
                raise InvalidPlanError(
                    "over-budget",
                    f"{len(self.resident)} chunks at {name}, with a budget of {plan.device.budget_chunks}",
                )
        for t in self.deaths[op]:
            self.alive.discard(t)
            self.resident -= {(t, c) for c in range(self.chunks[t])}

    def arrival(self, op: int, k: int, strict: bool) -> None:
        plan, trace = self.plan, self.plan.trace
        t, a, b, need = (int(getattr(plan, f"in_{f}")[k]) for f in ("tensor", "first", "last", "need"))
        name = trace.describe(op)
        if strict:
            if t not in self.alive:
                raise InvalidPlanError("arrive-dead", f"tensor {t} is not alive at {name}")
            for c in range(a, b):
                if (t, c) in self.resident:
                    raise InvalidPlanError("arrive-resident", f"chunk {c} of tensor {t} arrives at {name} and is there")
            steps = (need - op) % self.n
            for later in range(steps + 1):
                users = [u for u in self.uses[(op + later) % self.n] if u[0] == t and u[1] < b and u[2] > a]
                if bool(users) != (later == steps):
                    raise InvalidPlanError(
                        "need", f"what arrives at {name} for operation {need} is next used elsewhere"
                    )
        self.resident |= {(t, c) for c in range(a, b)}


def _prediction(plan: Plan, state: _Walk) -> None:
    p = plan.prediction
    if not state.peak <= p.peak_chunks <= plan.device.budget_chunks:
        raise InvalidPlanError("prediction-peak", f"{p.peak_chunks} chunks predicted, at least {state.peak} are held")
    if p.in_chunks != plan.in_chunks or p.out_chunks > plan.out_chunks:
        raise InvalidPlanError("prediction-traffic", f"{p.out_chunks} out and {p.in_chunks} in predicted")
    if p.step_seconds < plan.trace.seconds * (1 - 1e-9):
        raise InvalidPlanError("prediction-time", "the step is predicted to be faster than computing alone")
