"""Recorded iterations as traces: in memory, and as files for the ``lgm`` command.

Covers: asking for records where nothing has to leave, what of this machine a trace says.
Leaves: where iterations end (``planner``), raw records in the terms of a trace (``recordings``), the format
(:mod:`lgm`).
"""

from __future__ import annotations

import functools
import os
from dataclasses import replace
from typing import Any

import torch

import lgm

from ..errors import NotEnabledError, NotRecordedError
from ..native.core import RawIteration
from ..settings.environment import is_set
from .current_planner import current, newest_plan
from .recordings import make_recording
from .speeds import flop_per_second

__all__ = ["record", "recorded_trace", "save_trace", "speed_here", "trace_of"]


def record() -> None:
    """Record iterations from the next boundary on, also where everything fits and nothing would be recorded.

    Does nothing while ``VTENSOR_DISABLE=1`` keeps vtensor off.

    Raises
    ------
    NotEnabledError
        If vtensor is not enabled.
    """
    try:
        planner = current()
    except NotEnabledError:
        if is_set("VTENSOR_DISABLE"):
            return
        raise
    planner.record()
    planner.core.observe()
    if not planner.config.sees_all:
        planner.core.see("noted")  # a trace says what could be recomputed


def save_trace(path: str | os.PathLike[str], **meta: Any) -> lgm.Trace:
    """Write the last whole iteration to `path`, for the ``lgm`` command.

    Parameters
    ----------
    path
        A ``.npz`` file.
    meta
        What to remember beside versions and date, such as ``model="resnet50", batch=8``.

    Returns
    -------
    lgm.Trace
        What was written.

    Raises
    ------
    NotEnabledError
        If vtensor is not enabled.
    NotRecordedError
        If no whole iteration has been recorded yet.
    """
    trace = recorded_trace(**{**speed_here(), **meta})
    lgm.save_trace(trace, path)
    return trace


def recorded_trace(**meta: Any) -> lgm.Trace:
    """The last whole iteration, as :func:`save_trace` writes it, but for the speed of this processor."""
    raw = current().core.recorded_iteration()
    if not len(raw["op_name"]):
        first = "" if current().wanted else "call vtensor.record() first, then "
        raise NotRecordedError(
            f"no whole iteration is recorded yet: {first}train at least two; each ends with an optimizer step or "
            "vtensor.step() (without training: when a loop that does not fit repeats)"
        )
    return _with_calls(trace_of(raw, **meta), newest_plan())


def _with_calls(trace: lgm.Trace, plan: lgm.Plan | None) -> lgm.Trace:
    """While a plan is followed only what it recomputes is noted; what else could be, the iteration it is of knew."""
    if plan is None or current().wanted or _names(trace) != _names(plan.recorded):
        return trace
    known = plan.recorded
    return replace(trace, call_first=known.call_first, call_last=known.call_last, call_again=known.call_again)


def _names(trace: lgm.Trace) -> list[str]:
    return [trace.names[k] for k in trace.op_name.tolist()]


def trace_of(raw: RawIteration, **meta: Any) -> lgm.Trace:
    """What the core's log of an iteration says, with what is known of this machine."""
    planner = current()
    meta = {"unmanaged_bytes": planner.core.unmanaged()["peak"], "shelves": planner.shelves, **meta}
    return make_recording(raw, planner.config.chunk, meta).trace


def speed_here() -> dict[str, float]:
    """What times of this processor are told from those of a GPU by; nothing in a session on one."""
    return {"flop_per_second": _flop_per_second(torch.get_num_threads())} if current().config.device == "cpu" else {}


@functools.cache
def _flop_per_second(threads: int) -> float:
    """Measured once with so many: it takes a second."""
    return flop_per_second()
