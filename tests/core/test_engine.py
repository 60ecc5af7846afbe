"""The engine against an independent model: a dictionary of byte strings and a count of chunks.

The machine allocates, writes, reads, pins, evicts, exports and frees in any order, under any budget, with RAM or a file
as host store; with faults drawn at random when `FaultyEngineMachine` runs. Whatever happens, every live tensor holds
the bytes last written to it, and the budget holds.
"""

from __future__ import annotations

import tempfile
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import assume, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from vtensor import native

PAGE = 4096
module = native.load()
CALLS = ["create", "map", "protect", "unmap", "map_host", "unmap_host", "copy_out", "copy_in", "poll_out", "poll_in"]


class EngineMachine(RuleBasedStateMachine):
    slots = 4000

    @initialize(
        budget=st.integers(1, 12),
        disk=st.booleans(),
        policy=st.sampled_from(["lru", "size_staleness"]),
        granularity=st.sampled_from(["chunk", "tensor"]),
    )
    def start(self, budget: int, disk: bool, policy: str, granularity: str) -> None:
        self.engine = module.parts.TestEngine(
            budget, PAGE, self.slots, tempfile.gettempdir() if disk else "", policy, granularity
        )
        self.budget = budget
        self.content: dict[int, bytes] = {}
        self.pinned: dict[int, int] = {}
        self.exported: set[int] = set()
        self.calls: list[int] = []  # addresses that calls were given, and have not given back
        self.serial = 0

    def pick(self, data: Any, among: Any = None) -> int:
        choices = sorted(self.content if among is None else among)
        assume(choices)
        return data.draw(st.sampled_from(choices))

    def fill(self, address: int, nbytes: int) -> None:
        self.serial += 1
        value = bytes((self.serial * 31 + i // 512) % 251 for i in range(nbytes))
        self.engine.write(address, value)
        self.content[address] = value

    @rule(pages=st.integers(1, 6), tail=st.integers(1, PAGE))
    def allocate(self, pages: int, tail: int) -> None:
        nbytes = (pages - 1) * PAGE + tail
        try:
            address = self.engine.allocate(nbytes)
        except module.OutOfMemory as error:
            self.refused(error)
            return
        assert address % PAGE == 0 and address not in self.content
        self.fill(address, nbytes)

    def refused(self, error: Exception) -> None:
        raise AssertionError("the host store is large enough") from error

    @rule(data=st.data())
    def free(self, data: Any) -> None:
        address = self.pick(data)
        for pin in [p for p, a in self.pinned.items() if a == address]:
            self.engine.unpin(pin)
            del self.pinned[pin]
        self.engine.free(address)
        del self.content[address]
        self.exported.discard(address)
        self.calls = [one for one in self.calls if one != address]

    @rule(data=st.data(), write=st.booleans())
    def operation(self, data: Any, write: bool) -> None:
        """An operation on part of a tensor: what it uses is there and stays, then it may have been written."""
        address = self.pick(data)
        nbytes = len(self.content[address])
        start = data.draw(st.integers(0, nbytes - 1))
        stop = data.draw(st.integers(start + 1, nbytes))
        if data.draw(st.booleans()):
            start, stop = 0, nbytes
        pin = self.engine.pin(address, start, stop, write)
        assert self.engine.read(address + start, stop - start) == self.content[address][start:stop]
        if write:
            value = bytes(reversed(self.content[address][start:stop]))
            self.engine.write(address + start, value)
            old = self.content[address]
            self.content[address] = old[:start] + value + old[stop:]
        if data.draw(st.booleans()) or len(self.pinned) > 4:
            self.engine.unpin(pin)
        else:
            self.pinned[pin] = address

    @rule(data=st.data())
    def unpin(self, data: Any) -> None:
        pin = self.pick(data, self.pinned)
        self.engine.unpin(pin)
        del self.pinned[pin]

    @rule(data=st.data())
    def read_outside(self, data: Any) -> None:
        address = self.pick(data)
        assert self.engine.read(address, len(self.content[address])) == self.content[address]

    @rule(data=st.data())
    def write_outside(self, data: Any) -> None:
        address = self.pick(data)
        self.fill(address, len(self.content[address]))

    @rule(data=st.data())
    def merge(self, data: Any) -> None:
        address = self.pick(data)
        where = self.engine.merge(address)
        assert where["absent"] == where["leaving"] == where["arriving"] == 0
        if not self.pinned and not self.calls and where["chunks"] <= self.budget:
            assert where["borrowed"] == 0, "it fits, so it is resident"

    @rule(data=st.data())
    def export(self, data: Any) -> None:
        address = self.pick(data)
        self.engine.export_address(address)
        self.exported.add(address)

    @rule(data=st.data())
    def export_for_a_call(self, data: Any) -> None:
        address = self.pick(data)
        assert self.engine.export_for_a_call(address)
        self.calls.append(address)

    @rule(data=st.data())
    def end_a_call(self, data: Any) -> None:
        address = self.pick(data, self.calls)
        self.engine.end_export(address)
        self.calls.remove(address)

    def away(self, address: int) -> int:
        where = self.engine.residency(address)
        return int(where["absent"] + where["leaving"] + where["arriving"])

    @rule()
    def evict_all(self) -> None:
        self.engine.evict_all()

    @rule(budget=st.integers(1, 12))
    def resize(self, budget: int) -> None:
        try:
            self.engine.resize(budget)
        except module.OutOfMemory:
            assert self.pinned or self.calls, "only what may not move keeps the budget from shrinking"
            return
        self.budget = budget

    @invariant()
    def whole(self) -> None:
        assert self.engine.validate() == ""
        assert not any(map(self.away, self.given_away())), "an address that was given away leads nowhere"
        shot = self.engine.snapshot()
        assert shot["held_chunks"] <= shot["budget_chunks"] == self.budget
        assert shot["tensor_bytes"]["current"] == sum(map(len, self.content.values()))
        assert shot["wanted_bytes"]["current"] == sum(-(-len(c) // PAGE) * PAGE for c in self.content.values())

    def given_away(self) -> set[int]:
        return self.exported.union(self.calls)

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.engine.clear_faults()
        for address, value in self.content.items():
            assert self.engine.read(address, len(value)) == value
        for pin in self.pinned:
            self.engine.unpin(pin)
        self.engine.detach()
        for address, value in self.content.items():
            assert self.engine.read(address, len(value)) == value, "valid without a manager"
            self.engine.free(address)
        assert self.engine.drained()


class FaultyEngineMachine(EngineMachine):
    """The same with driver calls that fail now and then: refused at worst, never wrong, nothing leaked (I6)."""

    slots = 60

    @rule(call=st.sampled_from(CALLS), nth=st.integers(1, 4))
    def fault(self, call: str, nth: int) -> None:
        self.engine.fail(call, nth)

    def refused(self, error: Exception) -> None:
        assert "cannot allocate" in str(error) and "intact" in str(error)

    @rule(budget=st.integers(1, 12))
    def resize(self, budget: int) -> None:
        try:
            self.engine.resize(budget)
        except module.OutOfMemory as error:
            assert "nothing was lost" in str(error)
            return
        self.budget = budget

    def given_away(self) -> set[int]:
        return set()  # what could not be mapped comes when it is touched

    @rule(data=st.data())
    def merge(self, data: Any) -> None:
        self.engine.merge(self.pick(data))


TestEngine = EngineMachine.TestCase
TestFaultyEngine = FaultyEngineMachine.TestCase
TestEngine.settings = TestFaultyEngine.settings = settings(settings.default, stateful_step_count=50)


def test_what_is_touched_in_a_circle_is_used_where_it_is() -> None:
    """An operation that nobody observes may read more than there is room for, each part of which threw out the next."""
    engine = module.parts.TestEngine(8, PAGE, 100, "", "lru", "chunk")
    addresses = [engine.allocate(6 * PAGE) for _ in range(3)]
    for nth, address in enumerate(addresses):
        engine.write(address, bytes([nth]) * 6 * PAGE)
    for _ in range(50):
        for nth, address in enumerate(addresses):
            assert engine.read(address, 6 * PAGE) == bytes([nth]) * 6 * PAGE
    assert 0 < engine.snapshot()["faults"] <= 3 * 18
    for address in addresses:
        engine.free(address)


@pytest.mark.parametrize("freed", [0, 6], ids=["nobody has it", "freed tensors keep it"])
def test_what_is_touched_often_comes_where_there_is_room(freed: int) -> None:
    engine = module.parts.TestEngine(8, PAGE, 100, "", "lru", "chunk")
    address = engine.allocate(2 * PAGE)
    engine.write(address, b"x" * 2 * PAGE)
    for _ in range(6):
        engine.evict_all()
        if freed:
            engine.free(engine.allocate(freed * PAGE))
            engine.free(engine.allocate(2 * PAGE))
        assert engine.read(address, 2 * PAGE) == b"x" * 2 * PAGE
        assert engine.residency(address)["resident"] == 2
    engine.free(address)
