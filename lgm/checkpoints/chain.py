"""Checkpoints of an iteration: the chain of its forward pass, the best set on it, and the plan that follows it.

Covers: reading a chain off a trace, with no help from who wrote the model; what is dropped for a set of checkpoints,
and for a budget between that and everything.
Leaves: which set is best (``checkpoints``), what is run when (``recompute``), the plan as a plan (``planner``).

A layer of the chain is a call of the forward pass. A checkpoint before a call keeps what the rest of the forward pass
still reads; all else that backward will need is dropped, and made again from there. Where few bytes are alive across,
blocks end: such calls are what the dynamic program picks. Above the least peak a budget leaves a choice: the fastest.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np

from ..errors import LgmError
from ..iteration.calls import Calls
from ..iteration.lifetimes import Lifetimes, analyze_lifetimes
from ..iteration.roles import phases
from ..planning import planner
from ..progress import Progress
from ..records.model import Device, Floats, Ints, Plan, Remaking, Trace
from ..records.rows import nominal
from ..remaking.recompute import Candidate, candidates, schedule_makings
from ..remaking.rewrite import rewrite
from ..switches import Switches
from .least_peak import least_peak
from .rotor import Schedule, fill_tables

_BLOCKS = 64  # layers of the chain by which the fastest is looked for
_EFFORT = 60_000  # operations to look at, in all schedules that are tried

__all__ = [
    "Chain",
    "Checkpoints",
    "analyze_segments",
    "backward_at",
    "best_checkpoints",
    "checkpoints_at",
    "even_blocks",
    "find_chain",
]


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
    waits: Ints
    """Tensors that layers leave behind."""
    stop: int
    """The operation after the last one that goes backward."""


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
    end, stop = phases(trace)
    if not 0 < end < trace.operations:
        raise LgmError("this trace has no forward and backward pass")
    rows = np.unique(trace.call_first[trace.call_first < end])
    layer = np.searchsorted(rows, np.arange(end), side="right") - 1
    born, size = trace.tensor_born, trace.chunks * trace.chunk_bytes
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
    return Chain(rows, end, leaves, across, left, stop)


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
    """Make a plan by which parts of the chain are run again in the least time that the budget allows (``rotor``).

    Where the budget is below what making again alone can reach, all between the best checkpoints is made again, and
    what is too much even so is copied. Arguments are those of :func:`lgm.mix.analyze`.

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
    calls, found = candidates(trace, life)
    again = _fastest(trace, device, life, chain, calls, found, say)
    if again is None:
        _, layers = least_peak(chain.leaves, chain.across)
        again = _without(trace, calls, _between(trace, chain, found, set(layers)))
    return replace(planner.analyze(again[0], device, switches, say), remaking=again[1])


def _fastest(
    trace: Trace, device: Device, life: Lifetimes, chain: Chain, calls: Calls, found: list[Candidate], say: Progress
) -> tuple[Trace, Remaking] | None:
    """The trace of the fastest schedule whose peak is within the budget; None if none is.

    The chain is a model of the iteration, and more memory for it is not always more for the iteration: schedules for
    less and less are tried until one stays within the budget.
    """
    blocks = even_blocks(chain, _BLOCKS)
    ends = np.append(blocks[1:], len(chain.rows))
    begin = nominal(trace)[np.append(chain.rows[blocks], chain.end)]
    tables = fill_tables(
        np.diff(begin),
        np.add.reduceat(chain.leaves, blocks),
        chain.across[ends - 1],
        _beside(trace, life, chain, blocks),
        float(life.peak * trace.chunk_bytes),
    )
    most = int(np.clip(_EFFORT // trace.operations, 8, 48))
    last: Schedule | None = None
    for k, slots in enumerate(np.linspace(tables.slots, tables.fewest_slots(), most).astype(int).tolist()):
        say("made again", k / most)
        if slots > tables.slots or (schedule := tables.schedule(slots)) == last:
            continue
        last = schedule
        wanted = _by_schedule(trace, chain, blocks, found, schedule)
        tried = _without(trace, calls, wanted) if wanted else None
        if tried is not None and analyze_lifetimes(tried[0]).peak <= device.budget_chunks:
            return tried
    return None


def even_blocks(chain: Chain, most: int) -> Ints:
    """First layers of at most so many runs of layers that leave about as much behind, cut where least is alive."""
    left = np.concatenate([[0.0], np.cumsum(chain.leaves)])
    if left[-1] <= 0:
        raise LgmError("the forward pass leaves nothing behind for backward")
    parts = np.unique(np.searchsorted(left, np.linspace(0, left[-1], most + 1)[:-1], side="right") - 1)
    cuts = [
        a + 1 + int(np.argmin(chain.across[a:b])) for a, b in itertools.pairwise([*parts.tolist(), len(chain.rows)])
    ]
    return np.unique([0, *cuts[:-1]])


def _born_in(trace: Trace, chain: Chain, blocks: Ints) -> Ints:
    """[m] The block in which each tensor is born; as many as there are blocks for all others."""
    block = np.searchsorted(chain.rows[blocks], trace.tensor_born, side="right") - 1
    return np.where((block < 0) | (trace.tensor_born >= chain.end), len(blocks), block)


def backward_at(trace: Trace, chain: Chain, blocks: Ints) -> Ints:
    """[operations from backward on] The block it is at: the first one of which something was read."""
    read = np.full(trace.operations, len(blocks) - 1)
    np.minimum.at(read, trace.use_op, _born_in(trace, chain, blocks)[trace.use_tensor])
    return np.asarray(np.minimum.accumulate(read[chain.end :]), dtype=np.int64)


def _beside(trace: Trace, life: Lifetimes, chain: Chain, blocks: Ints) -> Floats:
    """[n] At most so many bytes are alive during backward of each block that are not left behind by a block.

    What a block left behind counts here in the row that uses it last, too: on the safe side, by the largest of them.
    """
    left = np.zeros(trace.operations + 1)
    np.add.at(left, trace.tensor_born[chain.waits], trace.chunks[chain.waits])
    died = trace.tensor_died[chain.waits]
    np.add.at(left, np.where(died < 0, trace.operations, died), -trace.chunks[chain.waits])
    beside = np.zeros(len(blocks))
    np.maximum.at(beside, backward_at(trace, chain, blocks), (life.live - np.cumsum(left)[:-1])[chain.end :])
    return np.asarray(beside * trace.chunk_bytes, dtype=np.float64)


def _by_schedule(
    trace: Trace, chain: Chain, blocks: Ints, found: list[Candidate], schedule: Schedule
) -> list[Candidate]:
    """What a schedule does not keep from the forward pass on, each until the pass that keeps it."""
    edges = np.append(chain.rows[blocks], chain.end)
    n = len(blocks)
    block = _born_in(trace, chain, blocks)
    since = np.append(schedule.kept, n)[block]
    for layer, of in schedule.checkpoints.items():
        reads = (trace.use_op >= edges[layer]) & (trace.use_op < chain.end)
        handed = np.unique(trace.use_tensor[reads])
        handed = handed[trace.tensor_born[handed] < edges[layer]]
        since[handed] = np.maximum(since[handed], of)
    dropped = [one for one in found if one.start <= chain.end <= one.stop and since[one.tensor] < n]
    begins = np.full(n + 1, trace.operations)  # of backward of each block: its first use of what the block leaves
    for one in dropped:
        of = int(block[one.tensor])
        if since[one.tensor] == schedule.kept[of]:
            begins[of] = min(begins[of], one.stop)
    return [replace(one, stop=min(one.stop, int(begins[since[one.tensor]]))) for one in dropped]
