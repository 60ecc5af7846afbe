"""The watchdog speaks when an engine stands still, and only then."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import vtensor
from vtensor import logs, native
from vtensor.session import watchdog

from ..identity import PAGE

pytestmark = pytest.mark.alone

Dog = Callable[[float], watchdog.Watchdog]


@pytest.fixture
def dog(tmp_path: Path) -> Iterator[Dog]:
    """A watchdog of so many seconds that writes to ``tmp_path / "said"``, in the place of that of all tests."""
    watchdog.stop()
    dogs: list[watchdog.Watchdog] = []
    with (tmp_path / "said").open("w") as said:

        def start(seconds: float) -> watchdog.Watchdog:
            dogs.append(watchdog.Watchdog(native.load(), seconds, said))
            dogs[-1].start()
            return dogs[-1]

        yield start
        for each in dogs:
            each.stop()


def standing(engine: Any, seconds: float) -> threading.Thread:
    """A thread inside the engine for so long, with the engine's lock in its hand."""
    engine.delay("map", int(seconds * 1e6))
    thread = threading.Thread(target=engine.allocate, args=(PAGE,))
    thread.start()
    return thread


def test_a_copy_that_does_not_end(dog: Dog, tmp_path: Path) -> None:
    with vtensor.enabled(2 * PAGE, chunk=PAGE, min_size=PAGE, link="2KB/s", device="cpu"):  # two seconds a copy
        started = dog(0.4)
        thread = threading.Thread(target=lambda: [torch.zeros(2 * PAGE // 4) for _ in range(2)], name="stands")
        thread.start()
        thread.join()
    started.stop()
    said = (tmp_path / "said").read_text()
    assert started.fired >= 1
    assert "a call is inside it" in said
    assert "in <lambda>" in said  # the stack of the thread that stands
    assert "thread " in said
    assert "validate: whole" in said
    assert "budget_chunks = 2" in said


def test_a_lock_that_is_not_given_back(dog: Dog, tmp_path: Path) -> None:
    engine = native.load().parts.TestEngine(4)
    started = dog(0.4)
    thread = standing(engine, 2)
    waits = threading.Thread(target=engine.allocate, args=(PAGE,))
    waits.start()
    thread.join()
    engine.clear_faults()
    waits.join()
    started.stop()
    said = (tmp_path / "said").read_text()
    assert started.fired >= 1
    assert "a call is inside it" in said
    assert "holds the engine's lock" in said


def test_a_thread_that_stands_with_pythons_lock(dog: Dog, tmp_path: Path) -> None:
    engine = native.load().parts.TestEngine(1, link=2048.0)
    first = engine.allocate(PAGE)
    engine.write(first, b"x" * PAGE)
    engine.evict_all()
    started = dog(0.4)
    time.sleep(0.3)
    engine.merge(first)  # two seconds, without letting other threads run
    started.stop()
    assert "Timeout (0:00:00.6" in (tmp_path / "said").read_text()


def test_silent_while_things_go_on_and_while_nothing_is_asked(dog: Dog, tmp_path: Path) -> None:
    with vtensor.enabled(8 * PAGE, chunk=PAGE, min_size=PAGE, host=1 << 28, device="cpu"):
        started = dog(2)
        tensors = [torch.full((2 * PAGE // 4,), float(i)) for i in range(16)]
        until = time.monotonic() + 4
        while time.monotonic() < until:
            for tensor in tensors:
                tensor.add_(1)
        time.sleep(3)
        started.stop()
    assert started.fired == 0
    assert (tmp_path / "said").read_text() == ""


def test_once_each_time_it_stands(dog: Dog, tmp_path: Path) -> None:
    engine = native.load().parts.TestEngine(4)
    started = dog(0.4)
    for _ in range(2):
        standing(engine, 1.5).join()
        engine.clear_faults()
        time.sleep(0.3)
    started.stop()
    assert started.fired == 2


def test_debug_starts_one(monkeypatch: pytest.MonkeyPatch) -> None:
    watchdog.stop()
    level = logs.log.level
    for name, runs in (("info", False), ("debug", True)):
        monkeypatch.setenv("VTENSOR_LOG", name)
        with vtensor.enabled(8 * PAGE, chunk=PAGE, device="cpu"):
            assert any(t.name == "vtensor-watchdog" for t in threading.enumerate()) == runs
    watchdog.stop()
    logs.log.setLevel(level)
