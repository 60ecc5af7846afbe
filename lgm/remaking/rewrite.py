"""The trace of an iteration as it will be once some tensors are dropped and recomputed.

A tensor that is dropped ends there; operations of its own make another one, which lives on in its place. So it is a
trace like any other, and is planned, simulated and validated as one.

Covers: the new rows and tensors, and what they are of the recorded ones (:class:`lgm.records.model.Remaking`).
Leaves: what is recomputed, and of what (``recompute``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ..iteration.calls import Calls, Content
from ..records.model import Ints, Remaking, Trace
from .recompute import Candidate, Making

__all__ = ["rewrite"]


@dataclass(slots=True)
class _Tensor:
    """A new tensor: the next life of a recorded one, or what lives only while something is recomputed."""

    bytes: int
    born: int
    died: int
    of: int
    """The recorded tensor; -1 for none."""


class _Writer:
    """The new rows, in the order in which they are added."""

    def __init__(self, trace: Trace, calls: Calls, makings: list[Making], switch: float) -> None:
        self.trace, self.calls, self.switch, self.chunks = trace, calls, switch, trace.chunks
        count = np.zeros(trace.operations, dtype=np.int64)
        for making in makings:
            count[making.row] += len(making.calls)
        self.at = np.arange(trace.operations) + np.cumsum(count)
        self.names, self.again = list(trace.names), dict[int, int]()
        self.rows: list[tuple[int, int, int, int]] = []  # row, name, nanoseconds, last row of all that is run with it
        self.tensors: list[_Tensor] = []
        self.uses: list[tuple[int, int, int]] = []  # row, tensor, whether it is written
        self.lives: dict[int, list[tuple[Candidate, int]]] = {}  # of each recorded tensor: its later lives
        self.sees = np.zeros(trace.operations, dtype=np.int64)
        self.drops: list[tuple[int, int]] = []
        self.makes: list[tuple[int, int]] = []
        for making in makings:
            self.make_again(making, int(self.at[making.row] - count[making.row]))
        self.end_lives()

    def make_again(self, making: Making, first: int) -> None:
        """The rows of a chain, the tensors it makes, and what it reads."""
        trace, calls = self.trace, self.calls
        last_read = {t: k for k, c in enumerate(making.calls) for t, _ in calls.reads[c]}
        targets = {calls.first_of((one.tensor, one.content)): one for one in making.targets}
        made: dict[Content, int] = {}  # which new tensor holds it
        for row, (k, c) in enumerate(enumerate(making.calls), start=first):
            span = slice(calls.first[c], calls.last[c] + 1)
            name = self.name(int(trace.op_name[calls.first[c]]))
            # Each chunk of what is wanted is mapped twice: away, and what was made in the place of what left.
            chunks = sum(int(self.chunks[begun[0]]) for begun in calls.allocates[c] if begun in targets)
            took = int(trace.op_ns[span].sum() + 2e9 * self.switch * chunks)
            self.rows.append((row, name, took, first + len(making.calls) - 1))
            self.sees[calls.first[c]] = 1
            for t, content in calls.reads[c]:
                again = made.get((t, content))
                written = again is not None and calls.maker.get((t, content + 1)) == c
                self.uses.append((row, -1 - t if again is None else again, int(written)))
                if again is not None and written:
                    made[t, content + 1] = again
            spare = calls.scratch[c]
            for begun in calls.allocates[c]:
                t = begun[0]
                size = int(trace.tensor_bytes[t])
                if begun in targets:
                    made[begun] = self.tensor(size, row, -1, t)
                    self.lives.setdefault(t, []).append((targets[begun], made[begun]))
                elif last_read.get(t, -1) > k:
                    made[begun] = self.tensor(size, row, first + last_read[t], -1)
                else:
                    spare += size
            if spare:
                self.tensor(spare, row, row, -1)
        for one in making.targets:
            self.drops.append((int(self.at[one.start - 1]) + 1, one.tensor))
            self.makes.append((first, one.tensor))

    def tensor(self, size: int, born: int, died: int, of: int) -> int:
        self.tensors.append(_Tensor(size, born, died, of))
        return self.trace.tensors + len(self.tensors) - 1

    def name(self, name: int) -> int:
        if name not in self.again:
            self.again[name] = len(self.names)
            self.names.append(f"{self.names[name]} (again)")
        return self.again[name]

    def end_lives(self) -> None:
        """Each life of a tensor ends where it is dropped, the last one as the tensor did."""
        trace, at, m = self.trace, self.at, self.trace.tensors
        self.died = np.where(trace.tensor_died >= 0, at[np.maximum(trace.tensor_died, 0)], -1)
        for t, lives in self.lives.items():
            lives.sort(key=lambda life: life[0].start)
            final = int(self.died[t])
            current = t
            for one, following in lives:
                end = int(at[one.start - 1])
                if current == t:
                    self.died[t] = end
                else:
                    self.tensors[current - m].died = end
                current = following
            self.tensors[current - m].died = final

    def use_tensor(self) -> Ints:
        """[k] The recorded uses, each of the life at that time."""
        tensor = self.trace.use_tensor.copy()
        for t, lives in self.lives.items():
            uses = np.flatnonzero(self.trace.use_tensor == t)
            for one, following in lives:
                tensor[uses[self.trace.use_op[uses] >= one.stop]] = following
        return tensor

    def source(self, row: int, tensor: int) -> int:
        """What is read at a new row: a new tensor, or the life of a recorded one (-1 - t) at that time."""
        if tensor >= 0:
            return tensor
        t = holder = -1 - tensor
        for _, following in self.lives.get(t, ()):
            if self.tensors[following - self.trace.tensors].born <= row:
                holder = following
        return holder

    def written(self) -> Trace:
        trace, at = self.trace, self.at
        n = trace.operations + len(self.rows)
        op_name, op_ns, op_last = np.zeros((3, n), dtype=np.int64)
        op_name[at], op_ns[at], op_last[at] = trace.op_name, trace.op_ns, at[trace.op_last]
        # All of a making is run at once: what it reads and makes does not leave before its end.
        rows, names, nanoseconds, last = np.array(self.rows, dtype=np.int64).T
        op_name[rows], op_ns[rows], op_last[rows] = names, nanoseconds, last
        new = np.array([(x.bytes, x.born, x.died) for x in self.tensors], dtype=np.int64).T
        size = np.concatenate([trace.tensor_bytes, new[0]])
        born = np.where(trace.tensor_born >= 0, at[np.maximum(trace.tensor_born, 0)], -1)
        reads = [(row, self.source(row, t), write) for row, t, write in self.uses]
        use_op, use_tensor, use_write = np.array(reads, dtype=np.int64).reshape(-1, 3).T
        columns = (
            (at[trace.use_op], use_op),
            (self.use_tensor(), use_tensor),
            (trace.use_first, np.zeros_like(use_op)),
            (trace.use_last, -(-size[use_tensor] // trace.chunk_bytes)),
            (trace.use_write, use_write),
        )
        uses = [np.concatenate(pair) for pair in columns]
        order = np.argsort(uses[0], kind="stable")
        none = np.zeros(0, dtype=np.int64)
        return replace(
            trace,
            names=tuple(self.names),
            op_name=op_name,
            op_ns=op_ns,
            op_last=op_last,
            tensor_bytes=size,
            tensor_born=np.concatenate([born, new[1]]),
            tensor_died=np.concatenate([self.died, new[2]]),
            use_op=uses[0][order],
            use_tensor=uses[1][order],
            use_first=uses[2][order],
            use_last=uses[3][order],
            use_write=uses[4][order],
            call_first=none,
            call_last=none,
            call_again=none,
        )

    def remaking(self) -> Remaking:
        drops, makes = (np.array(sorted(of), dtype=np.int64).T for of in (self.drops, self.makes))
        of = np.concatenate([np.arange(self.trace.tensors), np.array([x.of for x in self.tensors], dtype=np.int64)])
        return Remaking(self.trace, self.at, of, drops[0], drops[1], makes[0], makes[1], self.sees)


class Rewritten(NamedTuple):
    """A trace with what is recomputed in it, and what ties it to the recorded one."""

    trace: Trace
    remaking: Remaking


def rewrite(trace: Trace, calls: Calls, makings: list[Making], switch: float = 0.0) -> Rewritten:
    """The trace in which all targets are dropped and recomputed, and what ties it to the recorded one.

    `switch`: seconds it takes to map a chunk (:class:`lgm.Device`).

    Pre: there is at least one making; there is one for each row.
    """
    writer = _Writer(trace, calls, makings, switch)
    return Rewritten(writer.written(), writer.remaking())
