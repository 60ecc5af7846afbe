"""Plans by which segments of the chain are run again: between the best checkpoints, or in the least time for a budget.

Covers: what is dropped for a set of checkpoints, and for a budget between that and everything.
Leaves: the chain (``chain``), which set is best (``least_peak``), the fastest schedule (``rotor``), what is run when
(``remaking.recompute``), the plan as a plan (``planning.planner``).

All that no checkpoint keeps and backward will need is dropped, and recomputed from the checkpoint before. Above the
least peak a budget leaves a choice: the fastest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from ..errors import LgmError
from ..iteration.calls import Calls
from ..iteration.lifetimes import Lifetimes, analyze_lifetimes
from ..iteration.needs import check_feasible
from ..planning import planner
from ..progress import Progress, part
from ..records.model import Device, Floats, Ints, Plan, Trace
from ..records.rows import nominal
from ..remaking.only import SEARCHING, needs
from ..remaking.recompute import Candidate, Making, candidates, schedule_makings
from ..remaking.rewrite import Rewritten, rewrite
from ..switches import Switches
from .chain import Chain, backward_at, born_in, even_blocks, find_chain
from .least_peak import least_peak
from .rotor import SLOTS, Schedule, fill_tables

_BLOCKS = 64  # layers of the chain by which the fastest is looked for
_EFFORT = 60_000  # operations to look at, in all schedules that are tried
_MOST = 1.3  # times the budget: no schedule that the model says needs more is tried

__all__ = [
    "Checkpoints",
    "Ways",
    "analyze_segments",
    "best_checkpoints",
    "checkpoints_at",
    "every_root",
    "root_of",
    "ways_of",
]


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """A set of them, and what it does."""

    chain: Chain
    layers: list[int]
    plan: Plan
    """Which drops all between them, at a budget that is its peak: nothing is copied."""


@dataclass(frozen=True, slots=True)
class Ways:
    """Two ways to choose them; None where nothing of what lies between them can be recomputed."""

    least: Checkpoints | None
    """Those by which the chain needs least (``least_peak``)."""
    root: Checkpoints | None
    """By the usual rule: the square root of all layers."""

    @property
    def best(self) -> Checkpoints:
        """The one of the lower peak.

        The chain is a model of the iteration: in short ones, where much else is alive, that may be the rule of thumb.
        """
        found = [way for way in (self.least, self.root) if way is not None]
        return min(found, key=lambda way: (way.plan.prediction.peak_chunks, way.plan.trace.seconds))


def checkpoints_at(trace: Trace, chain: Chain, layers: list[int]) -> Checkpoints:
    """The plan for a set of checkpoints.

    Raises
    ------
    LgmError
        If nothing of what lies between them can be recomputed.
    """
    calls, found = candidates(trace, analyze_lifetimes(trace))
    again, remaking = _without(trace, calls, _between(trace, chain, found, set(layers)))
    peak = analyze_lifetimes(again).peak
    plan = planner.analyze(again, Device(peak, 1.0, 1.0))
    return Checkpoints(chain, layers, replace(plan, remaking=remaking))


def _without(trace: Trace, calls: Calls, wanted: list[Candidate]) -> Rewritten:
    """The trace in which these are dropped, and a segment is run once when the first of it is missed."""
    makings = _makings(trace, calls, wanted, soon=1.0)
    if not makings:
        raise LgmError("nothing between the checkpoints can be recomputed")
    return rewrite(trace, calls, makings)


def _makings(trace: Trace, calls: Calls, wanted: list[Candidate], soon: float) -> list[Making]:
    return schedule_makings(trace, calls, wanted, lambda _: False, soon, most=trace.operations)


def _between(trace: Trace, chain: Chain, found: list[Candidate], layers: set[int]) -> list[Candidate]:
    """What is dropped from the forward to the backward pass: all that no checkpoint keeps."""
    kept = np.zeros(trace.tensors, dtype=bool)
    ends = np.append(chain.rows[1:], chain.end)
    for k in layers:
        reads = (trace.use_op >= ends[k]) & (trace.use_op < chain.end)
        kept[trace.use_tensor[reads]] |= trace.tensor_born[trace.use_tensor[reads]] < ends[k]
    return [one for one in found if one.start <= chain.end <= one.stop and not kept[one.tensor]]


def ways_of(trace: Trace) -> Ways:
    """Both ways; there is at least one. Raises as :func:`find_chain`, and as :func:`checkpoints_at` if neither is."""
    chain = find_chain(trace)
    found: list[Checkpoints | None] = []
    for layers in (least_peak(chain.leaves, chain.across)[1], every_root(chain)):
        try:
            found.append(checkpoints_at(trace, chain, layers))
        except LgmError as error:
            found.append(None)
            why = error
    if found == [None, None]:
        raise why
    return Ways(*found)


def best_checkpoints(trace: Trace) -> Checkpoints:
    """Those of the least peak. Raises as :func:`ways_of`."""
    return ways_of(trace).best


def every_root(chain: Chain) -> list[int]:
    """Layers by the usual rule, and the last."""
    n = len(chain.rows)
    return sorted({*range(0, n, root_of(chain)), n - 1})


def root_of(chain: Chain) -> int:
    """Every so many layers one is kept by that rule."""
    return max(round(math.sqrt(len(chain.rows))), 1)


def analyze_segments(
    trace: Trace, device: Device, switches: Switches | None, say: Progress, *, alone: bool = False
) -> Plan:
    """Make a plan by which parts of the chain are run again in the least time that the budget allows (``rotor``).

    Where the budget is below what recomputing alone can reach, all between the best checkpoints is recomputed, and
    what is too much even so is copied. Arguments are those of :func:`lgm.analyze`.

    Parameters
    ----------
    alone
        Nothing is copied.

    Raises
    ------
    InfeasibleError
        If one operation, or what one segment recomputes, needs more than the budget; if `alone`, where no schedule of
        segments stays within it.
    LgmError
        As :func:`find_chain` and :func:`checkpoints_at`.
    """
    life = analyze_lifetimes(trace)
    if life.peak <= device.budget_chunks:
        return planner.analyze(trace, device, switches, say)
    if alone:
        check_feasible(trace, device, life)
    chain = find_chain(trace)
    calls, found = candidates(trace, life)
    best = _between(trace, chain, found, set(least_peak(chain.leaves, chain.across)[1]))
    tried = _Tried(trace, calls, device.budget_chunks, life.peak)
    _try_schedules(tried, best, _schedules(trace, device, life, chain, found), part(say, 0.0, SEARCHING))
    if tried.fastest is None and alone:
        raise needs(trace, life, tried.lowest, device)
    again, remaking = tried.fastest or _without(trace, calls, best)
    return replace(planner.analyze(again, device, switches, part(say, SEARCHING, 1.0)), remaking=remaking)


def _try_schedules(
    tried: _Tried, checkpoints: list[Candidate], schedules: Iterator[tuple[float, list[Candidate]]], say: Progress
) -> None:
    """Until one stays within the budget.

    The chain is a model of the iteration, and more memory for it is not always more for the iteration: schedules for
    less and less are tried, and the checkpoints of the least peak beside them. Of what a run makes for a later one
    either all is kept from then on, which takes less time, or nothing, which takes less memory.
    """
    tried.fits(checkpoints, soon=1.0)
    for done, wanted in schedules:
        say("recomputed", done)
        if tried.fits(wanted, soon=1.0) or tried.fits(wanted, soon=0.0):
            break


@dataclass(slots=True)
class _Tried:
    """The fastest of several that stays within a budget."""

    trace: Trace
    calls: Calls
    budget_chunks: int
    lowest: int
    """Peak of all."""
    fastest: Rewritten | None = None
    _last: list[Making] = field(default_factory=list)
    _last_fits: bool = False

    def fits(self, wanted: list[Candidate], *, soon: float) -> bool:
        """Whether the iteration stays within the budget if these are dropped."""
        makings = _makings(self.trace, self.calls, wanted, soon)
        if not makings:
            return False
        if makings == self._last:
            return self._last_fits
        again = rewrite(self.trace, self.calls, makings)
        peak = analyze_lifetimes(again.trace).peak
        self.lowest = min(self.lowest, peak)
        self._last, self._last_fits = makings, peak <= self.budget_chunks
        if self._last_fits and (self.fastest is None or again.trace.seconds < self.fastest.trace.seconds):
            self.fastest = again
        return self._last_fits


def _schedules(
    trace: Trace, device: Device, life: Lifetimes, chain: Chain, found: list[Candidate]
) -> Iterator[tuple[float, list[Candidate]]]:
    """What is dropped, and until when, in the least time for less and less memory; and how many were there, 0 to 1."""
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
    least, most = tables.fewest_slots(), min(math.ceil(_MOST * device.budget_chunks / life.peak * SLOTS), SLOTS)
    tries = int(np.clip(_EFFORT // trace.operations, 8, 48))
    last: Schedule | None = None
    for k, slots in enumerate(np.linspace(max(least, most), least, tries).astype(int).tolist()):
        if slots <= SLOTS and (schedule := tables.schedule(slots)) != last:
            yield k / tries, _by_schedule(trace, chain, blocks, found, schedule)
            last = schedule


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
    block = born_in(trace, chain, blocks)
    since = np.append(schedule.kept, n)[block]
    for layer, of in schedule.checkpoints.items():
        reads = (trace.use_op >= edges[layer]) & (trace.use_op < chain.end)
        handed = np.unique(trace.use_tensor[reads])
        handed = handed[trace.tensor_born[handed] < edges[layer]]
        since[handed] = np.maximum(since[handed], of)
    dropped = [one for one in found if one.start <= chain.end <= one.stop and since[one.tensor] < n]
    begins = np.full(n, trace.operations)  # of each pass: the first use of what is kept from it on
    for one in dropped:
        begins[since[one.tensor]] = min(begins[since[one.tensor]], one.stop)
    return [replace(one, stop=int(begins[since[one.tensor]])) for one in dropped]
