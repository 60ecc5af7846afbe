"""Checkpoints of an iteration: the chain of its forward pass, the best set on it, and the plan that follows it.

Covers: reading a chain off a trace, with no help from who wrote the model; what is dropped for a set of checkpoints,
and for a budget between that and everything.
Leaves: which set is best (``checkpoints``), what is run when (``recompute``), the plan as a plan (``planner``).

A layer of the chain is a call of the forward pass. A checkpoint before a call keeps what the rest of the forward pass
still reads; all else that backward will need is dropped, and made again from there. Where few bytes are alive across,
blocks end: such calls are what the dynamic program picks. A budget needs only some of the segments between them: those
that free the most for their time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from . import planner
from .calls import Calls
from .checkpoints import least_peak
from .errors import LgmError
from .lifetimes import analyze_lifetimes
from .model import Device, Floats, Ints, Plan, Remaking, Trace
from .planner import Progress, Switches
from .recompute import Candidate, candidates, schedule_makings
from .rewrite import rewrite

__all__ = ["Chain", "Checkpoints", "analyze_segments", "best_checkpoints", "checkpoints_at", "find_chain"]


@dataclass(frozen=True, slots=True)
class Chain:
    """n layers; layer k are the operations from `rows[k]` on, to the next one's or to `end`."""

    rows: Ints
    end: int
    """The operation with which backward begins."""
    leaves: Floats
    """[n] Bytes that each layer leaves behind for backward."""
    across: Floats
    """[n] Bytes a checkpoint at the end of each layer keeps."""


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """A set of them, and what it does."""

    chain: Chain
    layers: list[int]
    plan: Plan
    """Which drops all between them, at a budget that is its peak: nothing is copied."""


def find_chain(trace: Trace) -> Chain:
    """The forward pass as a chain.

    Raises
    ------
    LgmError
        If the trace knows no calls, or no forward pass: nothing whose name says it goes backward.
    """
    if not len(trace.call_first):
        raise LgmError("this trace does not say what can be run again; record it anew")
    backward = np.array(["_backward" in name for name in trace.names], dtype=bool)[trace.op_name]
    if not backward.any() or not (end := int(np.argmax(backward))):
        raise LgmError("this trace has no forward and backward pass")
    rows = np.unique(trace.call_first[trace.call_first < end])
    layer = np.searchsorted(rows, np.arange(end), side="right") - 1
    born, size = trace.tensor_born, trace.tensor_bytes
    early, late = trace.use_op < end, trace.use_op >= end
    last_forward = np.full(trace.tensors, -1)
    np.maximum.at(last_forward, trace.use_tensor[early], trace.use_op[early])
    for_backward = np.zeros(trace.tensors, dtype=bool)
    for_backward[trace.use_tensor[late]] = True
    made = np.flatnonzero((born >= rows[0]) & (born < end) & ~((trace.tensor_died >= 0) & (trace.tensor_died < born)))
    leaves, across = np.zeros((2, len(rows)))
    left = made[for_backward[made]]
    np.add.at(leaves, layer[born[left]], size[left])
    for t in made[last_forward[made] > born[made]].tolist():
        across[layer[born[t]] : layer[last_forward[t]]] += size[t]
    return Chain(rows, end, leaves, across)


def checkpoints_at(trace: Trace, chain: Chain, layers: list[int]) -> Checkpoints:
    """The plan for a set of checkpoints.

    Raises
    ------
    LgmError
        If nothing of what lies between them can be made again.
    """
    calls, found = candidates(trace, analyze_lifetimes(trace))
    again, remaking = _without(trace, calls, _between(trace, chain, found, set(layers)))
    peak = analyze_lifetimes(again).peak
    plan = planner.analyze(again, Device(peak, 1.0, 1.0))
    return Checkpoints(chain, layers, replace(plan, remaking=remaking))


def _without(trace: Trace, calls: Calls, wanted: list[Candidate]) -> tuple[Trace, Remaking]:
    """The trace in which these are dropped, and a segment is run once when the first of it is missed."""
    makings = schedule_makings(trace, calls, wanted, lambda _: False, soon=1.0, most=trace.operations)
    if not makings:
        raise LgmError("nothing between the checkpoints can be made again")
    return rewrite(trace, calls, makings)


def _between(trace: Trace, chain: Chain, found: list[Candidate], layers: set[int]) -> list[Candidate]:
    """What is dropped from the forward to the backward pass: all that no checkpoint keeps."""
    kept = np.zeros(trace.tensors, dtype=bool)
    ends = np.append(chain.rows[1:], chain.end)
    for k in layers:
        reads = (trace.use_op >= ends[k]) & (trace.use_op < chain.end)
        kept[trace.use_tensor[reads]] |= trace.tensor_born[trace.use_tensor[reads]] < ends[k]
    return [one for one in found if one.start <= chain.end <= one.stop and not kept[one.tensor]]


def best_checkpoints(trace: Trace) -> Checkpoints:
    """Those of the least peak. Raises as :func:`find_chain` and :func:`checkpoints_at`."""
    chain = find_chain(trace)
    _, layers = least_peak(chain.leaves, chain.across)
    return checkpoints_at(trace, chain, layers)


def analyze_segments(trace: Trace, device: Device, switches: Switches | None, say: Progress) -> Plan:
    """Make a plan by which whole segments between the best checkpoints are made again, as few as the budget allows.

    What is too much even with all of them is copied. Arguments are those of :func:`lgm.mix.analyze`.

    Raises
    ------
    InfeasibleError
        If one operation, or what one segment makes again, needs more than the budget.
    LgmError
        As :func:`find_chain` and :func:`checkpoints_at`.
    """
    life = analyze_lifetimes(trace)
    if life.peak <= device.budget_chunks:
        return planner.analyze(trace, device, switches, say)
    chain = find_chain(trace)
    _, layers = least_peak(chain.leaves, chain.across)
    calls, found = candidates(trace, life)
    wanted = _between(trace, chain, found, set(layers))
    segment, order = _by_segment(trace, chain, layers, wanted)
    fits = _without(trace, calls, wanted)
    few, many = 0, len(order)  # of those that free the most for their time: too few, and enough if all are
    while many - few > 1:
        say("made again", 1 - (many - few) / len(order))
        some = set(order[: (few + many) // 2])
        tried = _without(trace, calls, [one for one, of in zip(wanted, segment, strict=True) if of in some])
        if analyze_lifetimes(tried[0]).peak <= device.budget_chunks:
            fits, many = tried, (few + many) // 2
        else:
            few = (few + many) // 2
    return replace(planner.analyze(fits[0], device, switches, say), remaking=fits[1])


def _by_segment(trace: Trace, chain: Chain, layers: list[int], wanted: list[Candidate]) -> tuple[list[int], list[int]]:
    """The segment of each candidate, and those segments by what they free for the time they take, the most first."""
    edges = np.append(chain.rows[1:], chain.end)[layers]
    born = trace.tensor_born[[one.tensor for one in wanted]]
    segment = np.searchsorted(edges, born, side="right")
    chunks = np.bincount(segment, [one.chunks for one in wanted], minlength=len(edges) + 1)
    where = np.searchsorted(edges, np.arange(chain.end), side="right")
    seconds = np.bincount(where, trace.op_ns[: chain.end] / 1e9, minlength=len(edges) + 1)
    worth = chunks / np.maximum(seconds, 1e-9)
    used = np.unique(segment)
    return segment.tolist(), used[np.argsort(-worth[used], kind="stable")].tolist()
