"""State machines for the parts of the core, each against a model written here, without a look at the code."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import assume, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from vtensor import native

PAGE = 4096
parts = native.load().parts


class ChunkPoolMachine(RuleBasedStateMachine):
    """The pool against a set: chunks held are distinct, never more than the budget, and come back."""

    @initialize(capacity=st.integers(1, 12))
    def start(self, capacity: int) -> None:
        self.driver = parts.HostDriver(PAGE)
        self.pool = parts.ChunkPool(self.driver, capacity)
        self.capacity = capacity
        self.held: set[int] = set()
        self.peak = 0

    @rule()
    def acquire(self) -> None:
        chunk = self.pool.acquire()
        if len(self.held) == self.capacity:
            assert chunk is None
        else:
            assert chunk is not None and chunk not in self.held
            self.held.add(chunk)
            self.peak = max(self.peak, len(self.held))

    @rule(data=st.data())
    def release(self, data: Any) -> None:
        assume(self.held)
        chunk = data.draw(st.sampled_from(sorted(self.held)))
        self.pool.release(chunk)
        self.held.remove(chunk)

    @rule(capacity=st.integers(1, 12))
    def resize(self, capacity: int) -> None:
        assert self.pool.resize(capacity) == (capacity >= len(self.held))
        if capacity >= len(self.held):
            self.capacity = capacity

    @rule()
    def trim(self) -> None:
        self.pool.trim()
        assert self.pool.free == 0

    @invariant()
    def agrees(self) -> None:
        assert self.pool.validate() == ""
        assert (self.pool.held, self.pool.peak, self.pool.capacity) == (len(self.held), self.peak, self.capacity)
        assert self.driver.live()["chunks"] == self.pool.held + self.pool.free <= self.capacity


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
