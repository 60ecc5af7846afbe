"""What can be recomputed instead of being kept or copied, and at which price.

Covers: which contents can be recomputed, and from what; choosing among them and swaps by one price; what is run when.
Leaves: calls and contents (``iteration.calls``), the trace as it is once they are recomputed (``rewrite``), how many
prices are tried (``mix``).

To make a content again its call is run again, before it those of its sources that are gone by then, and so on: its
*chain*. Contents that are wanted before the same row are made by one chain, in which each call is run once. What a
chain makes on its way and something else needs soon is back from then on: so a block of a network of which all was
dropped is run once when the first of it is missed, as by a checkpoint.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from ..choosing.choice import choose
from ..choosing.cost import prices
from ..choosing.problem import Cover
from ..iteration.calls import Calls, Content
from ..iteration.lifetimes import Lifetimes
from ..records.model import Device, Floats, Trace
from ..records.rows import nominal

__all__ = ["Candidate", "Making", "candidates", "choose_makings", "copying_seconds", "schedule_makings"]

_LONGEST = 24  # calls in the chain of a single content
_LONGEST_TOGETHER = 30  # and of all that is made before one row, but for what there is no other way to
_ROUNDS = 4  # of taking out what is too dear
_SOON = 0.1  # of the iteration: what is needed within it is kept once it is made
_WORK = 6e6  # for improving a choice


@dataclass(frozen=True, slots=True)
class Candidate:
    """A tensor that could be dropped over [start, stop) and recomputed before `stop`."""

    tensor: int
    content: int
    start: int
    stop: int
    gaps: tuple[int, ...]
    chunks: int
    seconds: float
    """Of its chain, while nothing else is dropped."""


@dataclass(frozen=True, slots=True)
class Making:
    """What is run again before one row."""

    row: int
    calls: tuple[int, ...]
    """In the order in which they ran."""
    targets: tuple[Candidate, ...]
    """What is back from then on; each stops to be away at `row`."""


class _Books:
    """What is away when, while makings are put in the order of their rows."""

    def __init__(self, calls: Calls, wanted: Iterable[Candidate]) -> None:
        self.calls = calls
        self.away: dict[int, list[Candidate]] = {}
        self._until: dict[int, set[int]] = {}  # tensors of which something was to be away until a row
        for one in wanted:
            self._add(one)
        self._order = {tensor: k for k, tensor in enumerate(self.away)}

    def _add(self, one: Candidate) -> None:
        self.away.setdefault(one.tensor, []).append(one)
        self._until.setdefault(one.stop, set()).add(one.tensor)

    def until(self, row: int) -> list[Candidate]:
        """What is away until a row, in the order in which its tensors were wanted."""
        tensors = sorted(self._until.get(row, ()), key=self._order.__getitem__)
        return [one for tensor in tensors for one in self.away[tensor] if one.stop == row]

    def dropped(self, tensor: int, row: int) -> Candidate | None:
        """What of the tensor is dropped before a row."""
        return next((one for one in self.away.get(tensor, ()) if one.start < row < one.stop), None)

    def give_up(self, one: Candidate) -> None:
        self.away[one.tensor].remove(one)

    def shorten(self, one: Candidate, start: int, stop: int) -> Candidate:
        """It is away for less; if that is nothing, not at all."""
        self.give_up(one)
        shorter = replace(one, start=start, stop=stop)
        if start < stop:
            self._add(shorter)
        return shorter

    def chain(self, contents: list[Content], row: int, most: int, again: Callable[[Candidate], bool]) -> _Chain | None:
        """Calls that make contents before a row, those of the nearest past first, up to `most` of them.

        `again` says of what is dropped whether it may be made by the way; what may not, or is one too many, stays.
        None if a call that is needed cannot be run again, or too many must.
        """
        calls = self.calls
        found = _Chain()
        todo = [-self._maker(content) for content in contents]
        heapq.heapify(todo)
        seen = set(contents)
        while todo:
            c = -heapq.heappop(todo)
            if found.calls and found.calls[-1] == c:
                continue
            if c < 0 or not calls.again[c] or len(found.calls) == 2 * most:
                return None
            found.calls.append(c)
            for content in calls.makes[c]:
                if content not in seen and calls.holds(content, row) and (beside := self.dropped(content[0], row)):
                    found.passed.append(beside)
                    seen.add(content)
            for source in calls.reads[c]:
                if source in seen:
                    continue
                seen.add(source)
                if calls.holds(source, row):
                    dropped = self.dropped(source[0], row)
                    if dropped is None:
                        continue
                    if len(found.calls) + len(todo) >= most or not again(dropped):
                        found.stays.append(dropped)
                        continue
                    found.passed.append(dropped)
                heapq.heappush(todo, -self._maker(source))
        found.calls.reverse()
        return found

    def _maker(self, content: Content) -> int:
        return self.calls.maker.get(content, -1)


@dataclass(slots=True)
class _Chain:
    calls: list[int] = field(default_factory=list)
    """In the order in which they ran."""
    passed: list[Candidate] = field(default_factory=list)
    """What is dropped and made by the way."""
    stays: list[Candidate] = field(default_factory=list)
    """What must not be dropped for it."""


def candidates(trace: Trace, life: Lifetimes) -> tuple[Calls, list[Candidate]]:
    """What could be recomputed. What lasts could not: its history is longer than the trace."""
    calls = Calls.of(trace)
    books = _Books(calls, ())
    gaps = life.gaps
    chunks = trace.chunks.tolist()
    groups: dict[tuple[int, int, int], list[int]] = {}
    usable = (gaps.returns > 0) & (gaps.stop < trace.operations) & (trace.tensor_born[gaps.tensor] >= 0)
    for g in np.flatnonzero(usable).tolist():
        groups.setdefault((int(gaps.tensor[g]), int(gaps.start[g]), int(gaps.stop[g])), []).append(g)
    found = []
    for (t, start, stop), of in groups.items():
        died = int(trace.tensor_died[t])
        count = int(gaps.chunks[of].sum())
        if count < chunks[t] or start <= int(trace.tensor_born[t]) or (0 <= died < stop):
            continue
        content = calls.content(t, stop)
        if content != calls.content(t, start):
            continue
        chain = books.chain([(t, content)], stop, _LONGEST, lambda _: True)
        if chain is not None:
            seconds = sum(calls.seconds[c] for c in chain.calls)
            found.append(Candidate(t, content, start, stop, tuple(of), count, seconds))
    return calls, found


def schedule_makings(
    trace: Trace,
    calls: Calls,
    wanted: list[Candidate],
    dear: Callable[[Candidate], bool],
    soon: float = _SOON,
    most: int = _LONGEST_TOGETHER,
) -> list[Making]:
    """When each is recomputed: when it is needed, or sooner, where something that is made is made of it.

    What is made by the way and needed soon is back from then on. What is not is made twice, unless that is too `dear`:
    then it is not dropped, like all that cannot be made together with the others.
    """
    begin = nominal(trace)
    soon = begin[-1] * soon
    books, makings = _Books(calls, wanted), []
    for row in sorted({one.stop for one in wanted}):
        targets = books.until(row)

        def back(one: Candidate, row: int = row) -> bool:
            return bool(begin[one.stop] - begin[row] <= soon)

        chain = None
        while targets and chain is None:
            contents = [(one.tensor, one.content) for one in targets]
            chain = books.chain(contents, row, most, lambda one: back(one) or not dear(one))
            if chain is None:
                books.give_up(targets.pop())
        if chain is None:
            continue
        for one in chain.stays:
            books.give_up(one)
        for c in chain.calls:  # what is read now leaves later
            for t, _ in calls.reads[c]:
                for one in [one for one in books.away.get(t, ()) if one.start == row]:
                    books.shorten(one, row + 1, one.stop)
        targets += [books.shorten(one, one.start, row) for one in chain.passed if back(one)]
        makings.append(Making(row, tuple(chain.calls), tuple(targets)))
    return makings


def copying_seconds(trace: Trace, life: Lifetimes, device: Device) -> Floats:
    """[g] What copying one chunk of each gap keeps a lane busy, more for short gaps: long ones are easier to hide."""
    gaps = life.gaps
    lanes = prices(gaps, device, "moves") * (gaps.bytes / device.in_speed + device.latency).max(initial=0.0)
    begin = nominal(trace)
    turns = (begin[gaps.stop % trace.operations] - begin[gaps.start]) / max(begin[-1], 1e-12) % 1.0
    return np.asarray((lanes + gaps.bytes * device.tax * 2) * (1.5 - turns), dtype=np.float64)


def choose_makings(
    trace: Trace,
    life: Lifetimes,
    device: Device,
    calls: Calls,
    found: list[Candidate],
    copying: Floats,
) -> list[Making]:
    """What is recomputed, and when, where copying a chunk of each gap is worth so much computing.

    One cover problem (``choice``) with the cheaper of both ways for each gap. What is dearer than its copy once all is
    put together is taken out again.
    """
    gaps = life.gaps
    each, by_gap = _cheaper(copying, found)
    problem = Cover(
        trace.operations,
        life.live - device.budget_chunks,
        gaps.start,
        gaps.stop,
        gaps.chunks,
        each / max(each.max(initial=0.0), 1e-12),
    )
    used = choose(problem, work=_WORK)
    wanted = [found[k] for k in sorted({by_gap[g] for g in np.flatnonzero(used > 0).tolist() if g in by_gap})]

    def copied(one: Candidate) -> float:
        return float((copying[list(one.gaps)] * gaps.chunks[list(one.gaps)]).sum())

    def dear(one: Candidate) -> bool:
        return one.seconds > copied(one)

    for _ in range(_ROUNDS):
        makings = schedule_makings(trace, calls, wanted, dear)
        too_dear = {one.gaps for making in makings for one in _too_dear(making, calls, copied)}
        if not too_dear:
            return makings
        wanted = [one for one in wanted if one.gaps not in too_dear]
    return schedule_makings(trace, calls, wanted, dear)


def _cheaper(copying: Floats, found: list[Candidate]) -> tuple[Floats, dict[int, int]]:
    """[g] The price of a chunk in each gap, and which candidate it is the price of, if of one."""
    each, by_gap = copying.copy(), {}
    for k, one in enumerate(found):
        making, of = one.seconds / one.chunks, list(one.gaps)
        if making < float(each[of].mean()):
            each[of] = making
            by_gap.update(dict.fromkeys(one.gaps, k))
    return each, by_gap


def _too_dear(making: Making, calls: Calls, copied: Callable[[Candidate], float]) -> tuple[Candidate, ...]:
    seconds = sum(calls.seconds[c] for c in making.calls)
    return making.targets if seconds > sum(map(copied, making.targets)) else ()
