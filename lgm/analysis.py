"""From a trace and a device to a plan, whichever way things may leave: the front door.

Covers: which kinds of plan are made for what was asked, and which of them is the best.
Leaves: each kind to its module: plans that copy (``planning.planner``), that recompute what is cheaper so
(``remaking.mix``), that copy nothing (``remaking.only``), that run parts of the forward pass again
(``checkpoints.segments``); room before a rush (``planning.relief``).
"""

from __future__ import annotations

from typing import Literal, get_args

from .checkpoints.segments import analyze_segments
from .errors import InfeasibleError, LgmError
from .planning import planner
from .planning.relief import relieve
from .progress import Progress, part, silent
from .records.model import Device, Plan, Trace
from .remaking.mix import Search, most_tries
from .remaking.only import analyze_only
from .switches import Switches
from .timing.settling import GAIN

__all__ = ["DEAR", "Recompute", "analyze"]

Recompute = Literal["auto", "never", "only", "segments"]

DEAR = 1.2
"""Times computing: where a plan without copies takes longer another kind may be faster."""


def analyze(
    trace: Trace,
    device: Device,
    switches: Switches | None = None,
    progress: Progress | None = None,
    *,
    recompute: Recompute = "never",
    hasty: bool = False,
) -> Plan:
    """Make a plan.

    Parameters
    ----------
    trace
        One iteration.
    device
        The budget and the speeds.
    switches
        Default: the product's heuristics.
    progress
        Called with what is being done and how much of all is done, 0 to 1.
    recompute
        ``"auto"``: what is cheaper to recompute than to copy is recomputed; the fastest plan simulated is kept, so that
        none is slower than copying alone. ``"never"``: all that leaves is copied. ``"only"``: nothing is copied.
        ``"segments"``: parts of the forward pass taken as a chain are run again, in the least time that the budget
        allows (``rotor``), before anything is copied.
    hasty
        In a tenth of the time, to be followed until a better one is there: a plan with copies makes no room before a
        rush, one without is of the first kind only, and may need more. Segments are not made in haste.

    Returns
    -------
    Plan
        For `trace` as it is, or, where it makes things again, as it will be (``Plan.remaking``).

    Raises
    ------
    InfeasibleError
        If one operation needs more than the budget; with ``"only"``, if not enough can be recomputed.
    LgmError
        With ``"segments"``, if the forward pass is no chain of layers.
    ValueError
        For a word of `recompute` that is none of these.
    """
    if recompute not in get_args(Recompute):
        raise ValueError(f"recompute={recompute!r} is unknown; choose one of {', '.join(get_args(Recompute))}")
    say = progress or silent
    if recompute == "segments":
        plan = analyze_segments(trace, device, switches, say)
    elif recompute == "only":
        plan = _without_copies(trace, device, switches, say, hasty=hasty)
    else:
        mixes = recompute == "auto" and len(trace.call_first) > 0
        plan = _with_copies(trace, device, switches, say, mixes=mixes, hasty=hasty)
    say("done", 1.0)
    return plan


def _with_copies(
    trace: Trace, device: Device, switches: Switches | None, say: Progress, *, mixes: bool, hasty: bool
) -> Plan:
    """The fastest of those that only copy and those that also recompute."""
    share = 1 / (2 + most_tries(trace)) if mixes else 0.5
    found = [planner.analyze(trace, device, switches, part(say, 0.0, share))]
    if found[0].prediction.step_seconds > trace.seconds * (1 + GAIN):
        if mixes:
            mixed = Search(trace, device, switches, part(say, share, 1.0), found[0]).run()
            found += [mixed] if mixed is not found[0] else []
        found = found if hasty else [relieve(plan) for plan in found]
    return min(found, key=lambda plan: plan.prediction.step_seconds)


def _without_copies(trace: Trace, device: Device, switches: Switches | None, say: Progress, *, hasty: bool) -> Plan:
    """What is dropped tensor by tensor is mostly faster. But that way each is kept from when it is recomputed, while
    segments may be run several times: so they reach lower, and are faster near the least that the other way needs.
    """
    failed: list[InfeasibleError] = []
    found: list[Plan] = []
    try:
        found.append(analyze_only(trace, device, switches, part(say, 0.0, 0.5), hasty=hasty))
    except InfeasibleError as error:
        failed.append(error)
    if not hasty and (not found or found[0].trace.seconds > trace.seconds * DEAR):
        try:
            found.append(analyze_segments(trace, device, switches, part(say, 0.5, 1.0), alone=True))
        except InfeasibleError as error:
            failed.append(error)
        except LgmError:  # the forward pass is no chain of layers
            pass
    if not found:
        raise min(failed, key=lambda error: error.needed)
    return min(found, key=lambda plan: plan.prediction.step_seconds)
