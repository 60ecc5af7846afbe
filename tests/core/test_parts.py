"""State machines for the parts of the core, each against a model written here, without a look at the code."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import assume, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from vtensor import native

PAGE = 4096
parts = native.load().parts


class ChunkPoolMachine(RuleBasedStateMachine):
    """The pool against two lists: which chunk is taken, never more than the budget, and all come back."""

    @initialize(capacity=st.integers(1, 12))
    def start(self, capacity: int) -> None:
        self.driver = parts.HostDriver(PAGE)
        self.pool = parts.ChunkPool(self.driver, capacity)
        self.capacity = capacity
        self.held: set[int] = set()
        self.free: list[int] = []
        self.leaving: list[int] = []
        self.peak = 0

    def hold(self, chunk: int) -> None:
        self.held.add(chunk)
        self.peak = max(self.peak, len(self.held))

    def existing(self) -> int:
        return len(self.held) + len(self.free) + len(self.leaving)

    @rule(oldest=st.booleans())
    def acquire(self, oldest: bool) -> None:
        chunk = self.pool.acquire(oldest)
        if self.free:
            assert chunk == self.free.pop(0 if oldest else -1)
        elif self.existing() < self.capacity:
            assert chunk is not None and chunk not in self.held and chunk not in self.leaving
        else:
            assert chunk is None
            return
        self.hold(chunk)

    @rule()
    def acquire_leaving(self) -> None:
        chunk = self.pool.acquire_leaving()
        assert chunk == (self.leaving.pop(0) if self.leaving else None)
        if chunk is not None:
            self.hold(chunk)

    @rule(chunk=st.integers(0, 12), wanted=st.booleans())
    def take(self, chunk: int, wanted: bool) -> None:
        lists = (self.free, self.leaving) if wanted else (self.free,)
        found = [chunks for chunks in lists if chunk in chunks]
        assert self.pool.take(chunk, wanted) == bool(found)
        for chunks in found:
            chunks.remove(chunk)
            self.hold(chunk)

    @rule(data=st.data(), leaving=st.booleans())
    def release(self, data: Any, leaving: bool) -> None:
        assume(self.held)
        chunk = data.draw(st.sampled_from(sorted(self.held)))
        (self.pool.release_leaving if leaving else self.pool.release)(chunk)
        (self.leaving if leaving else self.free).append(chunk)
        self.held.remove(chunk)

    @rule(data=st.data())
    def settle(self, data: Any) -> None:
        left = data.draw(st.sets(st.sampled_from(self.leaving))) if self.leaving else set()
        self.pool.settle(left)
        while self.leaving and self.leaving[0] in left:
            self.free.append(self.leaving.pop(0))

    @precondition(lambda self: not self.leaving)
    @rule(capacity=st.integers(1, 12))
    def resize(self, capacity: int) -> None:
        assert self.pool.resize(capacity) == (capacity >= len(self.held))
        if capacity >= len(self.held):
            self.capacity = capacity
            del self.free[max(capacity - len(self.held), 0) :]

    @precondition(lambda self: not self.leaving)
    @rule()
    def trim(self) -> None:
        self.pool.trim()
        self.free.clear()

    @invariant()
    def agrees(self) -> None:
        assert self.pool.validate() == ""
        assert (self.pool.held, self.pool.peak, self.pool.capacity) == (len(self.held), self.peak, self.capacity)
        assert self.driver.live()["chunks"] == self.existing() <= self.capacity
        assert self.pool.free == len(self.free) + len(self.leaving)


class AddressSpaceMachine(RuleBasedStateMachine):
    """The address space against a list of booleans: best fit, lowest first, neighbours merged."""

    SIZE = 40

    @initialize()
    def start(self) -> None:
        self.space = parts.AddressSpace(PAGE * 1000, self.SIZE, PAGE)
        self.free = [True] * self.SIZE
        self.taken: dict[int, int] = {}

    def runs(self) -> list[tuple[int, int]]:
        """(length, start) of every maximal run of free chunks."""
        runs, start = [], None
        for i, is_free in enumerate([*self.free, False]):
            if is_free and start is None:
                start = i
            elif not is_free and start is not None:
                runs.append((i - start, start))
                start = None
        return runs

    @rule(chunks=st.integers(1, 12))
    def acquire(self, chunks: int) -> None:
        fitting = [run for run in self.runs() if run[0] >= chunks]
        address = self.space.acquire(chunks)
        if not fitting:
            assert address == 0
            return
        start = min(fitting)[1]
        assert address == PAGE * (1000 + start)
        self.taken[start] = chunks
        self.free[start : start + chunks] = [False] * chunks

    @rule(data=st.data())
    def release(self, data: Any) -> None:
        assume(self.taken)
        start = data.draw(st.sampled_from(sorted(self.taken)))
        chunks = self.taken.pop(start)
        self.space.release(PAGE * (1000 + start), chunks)
        self.free[start : start + chunks] = [True] * chunks

    @invariant()
    def agrees(self) -> None:
        assert self.space.validate() == ""
        assert self.space.free_chunks == sum(self.free)
        assert self.space.runs == len(self.runs())


TestChunkPool = ChunkPoolMachine.TestCase
TestAddressSpace = AddressSpaceMachine.TestCase
TestChunkPool.settings = TestAddressSpace.settings = settings(settings.default, stateful_step_count=40)


# What each state means, told again: (has a chunk, has a valid slot, a copy is under way, is mapped).
MEANING = {
    "resident": (True, None, False, True),
    "leaving": (True, False, True, False),
    "absent": (False, True, False, False),
    "arriving": (True, True, True, False),
    "borrowed": (False, True, False, True),
}
EVENTS = {
    "evict": ("resident", "leaving"),
    "discard": ("resident", "absent"),
    "left": ("leaving", "absent"),
    "stay": ("leaving", "resident"),
    "fetch": (("absent", "borrowed"), "arriving"),
    "arrived": ("arriving", "resident"),
    "turn_back": ("arriving", "absent"),
    "borrow": ("absent", "borrowed"),
    "withdraw": ("borrowed", "absent"),
}


@pytest.mark.parametrize("state", MEANING)
@pytest.mark.parametrize("event", EVENTS)
def test_residency_table(state: str, event: str) -> None:
    allowed, after = EVENTS[event]
    expected = after if state in ((allowed,) if isinstance(allowed, str) else allowed) else None
    assert parts.next_state(state, event) == expected


def test_data_is_always_somewhere() -> None:
    for chunk, slot, _, _ in MEANING.values():
        assert chunk or slot
    with pytest.raises(ValueError, match="no such"):
        parts.next_state("resident", "vanish")
