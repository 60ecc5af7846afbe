"""What the simulator says of a step that followed a plan, by the times that its own operations took.

A plan promises a step by the times of iterations that had none. Computing may take longer or shorter since, by what
else the processor does; what is wrong then is not what the simulator says of copies, waits and room. That is told by
the step's own times.

Covers: the plan with those times, simulated; the least such a step could take.
Leaves: what is compared with it (``harmony``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from lgm.bounds import least_seconds_of_any_mix
from lgm.records.model import Device, Ints, Plan, Trace
from lgm.timing.moves import moves_of_plan
from lgm.timing.simulate import run_plan
from vtensor import planning

_MOST = 0.5  # of the time measured that copies may have taken from computing
_WINDOWS = 24  # of the iteration, in which the bound looks


@dataclass(frozen=True, slots=True)
class Foresight:
    """Seconds, and what they are of."""

    step: float
    bound: float
    """The longest of computing, with what is recomputed, and of the copies of each lane."""
    recorded: Trace
    device: Device

    def least(self) -> float:
        """No plan for the iteration is faster. Takes seconds."""
        return least_seconds_of_any_mix(self.recorded, self.device, windows=_WINDOWS)


def of_last_step() -> Foresight | None:
    """None if the iteration that ended last is none of the newest plan's."""
    planner = planning.current()
    raw, plan = planner.core.recorded_iteration(), planner.maker.plan
    if plan is None or not np.array_equal(raw["op_name"], plan.recorded.op_name):
        return None
    return of_times(plan, np.diff(np.append(raw["op_begin"], raw["end"])))


def of_times(plan: Plan, op_ns: Ints) -> Foresight:
    """`op_ns`: nanoseconds of each operation as recorded while the plan was followed, without waiting.

    What copies took from computing is in them: it is taken out, as the simulator adds it. What is recomputed takes
    longer or shorter as all does.
    """
    device = plan.device
    life, moves = moves_of_plan(plan)
    out, back = float(moves.out_bytes.sum()), float(moves.in_bytes.sum())
    taken = (out + back) * device.tax / (float(op_ns.sum()) / 1e9)
    alone = np.maximum(op_ns * (1 - min(taken, _MOST)), 0).astype(np.int64)
    trace = recorded = replace(plan.recorded, op_ns=alone)
    if plan.remaking is not None:
        every = (plan.trace.op_ns * (trace.seconds / plan.recorded.seconds)).astype(np.int64)
        every[plan.remaking.at] = alone
        trace = replace(plan.trace, op_ns=every)
    prediction, _ = run_plan(trace, device, life, moves)
    bound = max(trace.seconds, out / device.out_speed, back / device.in_speed)
    return Foresight(prediction.step_seconds, bound, recorded, device)
