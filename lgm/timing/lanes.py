"""The two lanes that copy, and the free chunks between them: the state of a simulation.

Covers: when copies begin and end, who gets a chunk that becomes free, the record of all that for drawing.
Leaves: what is copied, and why (``simulate``).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from ..errors import LgmError
from ..records.model import Device

__all__ = ["Lanes", "Timeline"]

_MANY = 2048  # chunks of one copy out, from which on they become free several at a time: half a thousandth of them


@dataclass(slots=True)
class Timeline:
    """One iteration for drawing: seconds from its beginning."""

    begin: list[float] = field(default_factory=list)
    """[n] When each operation's kernel starts."""
    wait: list[float] = field(default_factory=list)
    """[n] How long it waited for copies before; what moving takes of computing is no part of it."""
    held: list[int] = field(default_factory=list)
    """[n] Chunks held while it runs."""
    out: list[tuple[float, float, int, int]] = field(default_factory=list)
    """Start, end, row of the move, chunks."""
    back: list[tuple[float, float, int, int]] = field(default_factory=list)


class Lanes:
    """Free chunks, the two lanes, and arrivals that wait for a chunk."""

    def __init__(self, device: Device, free: int) -> None:
        self.latency, self.out_speed, self.in_speed = device.latency, device.out_speed, device.in_speed
        self.free = free
        self.least = free
        self.out_free = 0.0
        self.in_free = 0.0
        self.leaving: deque[list[float]] = deque()  # next completion, time between completions, how many are left
        self.pending: deque[list[float]] = deque()  # chunks left, seconds each, key, not before
        self.done: dict[int, float] = {}
        self.log: Timeline | None = None

    def leave(self, now: float, chunks: int, size: int, key: int) -> None:
        each = size / chunks / self.out_speed + self.latency
        start = max(now, self.out_free)
        self.out_free = start + each * chunks
        self.leaving.append([start + each, each, chunks])
        if self.log is not None:
            self.log.out.append((start, self.out_free, key, chunks))

    def advance(self, now: float) -> None:
        """Let copies out end until `now`; arrivals that wait take the chunks."""
        leaving = self.leaving
        while leaving and leaving[0][0] <= now:
            bundle = leaving[0]
            if self.pending or bundle[2] == 1:
                count = 1 if bundle[2] < _MANY else min(int(bundle[2]) // _MANY, int(self.pending[0][0]))
            else:
                count = min(int((now - bundle[0]) / bundle[1]) + 1 if bundle[1] > 0 else int(bundle[2]), int(bundle[2]))
            at = bundle[0] + (count - 1) * bundle[1]
            bundle[0] += count * bundle[1]
            bundle[2] -= count
            if bundle[2] <= 0:
                leaving.popleft()
            self.free += count
            if self.pending:
                self.pump(at)

    def pump(self, now: float) -> None:
        while self.pending and self.free > 0:
            bundle = self.pending[0]
            count = min(self.free, int(bundle[0]))
            self.free -= count
            start = max(self.in_free, now, bundle[3])
            self.in_free = start + count * bundle[1]
            bundle[0] -= count
            if self.log is not None:
                self.log.back.append((start, self.in_free, int(bundle[2]), count))
            if bundle[0] <= 0:
                self.done[int(bundle[2])] = self.in_free
                self.pending.popleft()
        self.least = min(self.least, self.free)

    def wait_for_chunks(self, now: float, chunks: int) -> float:
        """The time at which `chunks` are free, later than in the core: here arrivals that wait come first."""
        self.advance(now)
        while self.free < chunks:
            if not self.leaving:
                raise LgmError("simulation: an operation waits for chunks that nobody gives up")
            bundle = self.leaving[0]
            more = 0 if self.pending or bundle[2] < _MANY else min(chunks - self.free, int(bundle[2])) - 1
            now = max(now, bundle[0] + more * bundle[1])
            self.advance(now)
        return now

    def wait_for_arrival(self, now: float, key: int) -> float:
        """The time from which it is known when the arrival `key` is done."""
        while key not in self.done:
            if not self.leaving:
                raise LgmError("simulation: an arrival waits for a chunk that nobody gives up")
            now = max(now, self.leaving[0][0])
            self.advance(now)
        return now
