"""Exceptions at every point of ``enable``, of a change of budget, of ``disable``, and of a ``with`` block.

Whatever an interrupted call left, one more ``disable()`` ends, or one more ``enable()``.
"""

from __future__ import annotations

import faulthandler
import math
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.optim import optimizer

import lgm
import vtensor
from vtensor import native, planning
from vtensor.session import adoption, lifecycle

from .interrupts import Point, interrupted, points_of, thinned

PAGE = 4096
BUDGETS = 64 * PAGE, 32 * PAGE


@pytest.fixture(autouse=True)
def what_is_older_is_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether that is done depends on how long ago it was, and calls are to go the same way each time."""
    monkeypatch.setattr(adoption, "_next", math.inf)
    monkeypatch.setattr(adoption, "_FREE", 0)


def as_torch_has_it() -> dict[str, Any]:
    """All that a session replaces, and what tells that nothing of one is left."""
    hooks = optimizer._global_optimizer_post_hooks
    return {
        "functions": {name: value for name, value in vars(torch).items() if name.startswith("_f")},
        "tensor": dict(vars(torch.Tensor)),
        "storage": dict(vars(torch.UntypedStorage)),
        "backward": dict(vars(torch.autograd.function.BackwardCFunction)),
        "faulthandler": faulthandler.enable,
        "hooks": list(hooks.values()),
        "threads": [t.name for t in threading.enumerate() if t.name.startswith("vtensor")],
        "planner": planning.current_planner._planner,
        "enabled": vtensor.is_enabled(),
    }


def core_runs() -> bool:
    module = native.load()
    try:
        module.snapshot()
    except module.InvalidUse:
        return False
    return True


def on(budget: int = BUDGETS[0]) -> None:
    vtensor.enable(budget, chunk=PAGE, min_size=1, host=1 << 24)


def block() -> None:
    with vtensor.enabled(BUDGETS[0], chunk=PAGE, min_size=1, host=1 << 24), vtensor.enabled(BUDGETS[1]):
        torch.ones(PAGE)


class Trial:
    """Interrupts a call at one point after another, each time from the same beginning."""

    def __init__(self, prepare: Callable[[], None], action: Callable[[], None]) -> None:
        self.prepare, self.action = prepare, action
        self.done = self.kept_lock = 0
        native.load()
        on()  # what a process does once is done
        vtensor.disable()
        self.plain = as_torch_has_it()
        prepare()
        self.points = points_of(action)
        vtensor.disable()
        self.is_off("no interrupt")

    def is_off(self, after: object) -> None:
        found = as_torch_has_it()
        differing = [name for name in found if found[name] != self.plain[name]]
        assert not differing, f"{differing} differ after {after}"
        assert not core_runs(), f"the core runs after {after}"

    def interrupt(self, at: Point, *, second: Point | None = None) -> None:
        """Then one ``disable()``, itself interrupted first if a `second` point says so; or one ``enable()``."""
        self.prepare()
        assert interrupted(self.action, at), f"never came by {at}"
        self.done += 1
        self._free_lock(at)
        if second is not None:
            interrupted(vtensor.disable, second)
            self._free_lock(second)
        elif self.done % 2:
            on()
            budget = vtensor.memory_stats()["budget_bytes"]
            assert vtensor.is_enabled() and budget == BUDGETS[0] == lifecycle.active_config().budget, at
            assert planning.current().config.budget == budget, at
        vtensor.disable()
        self.is_off(at if second is None else f"{at}, and {second}")

    def interrupt_twice(self, at: Point, second: Point, monkeypatch: pytest.MonkeyPatch) -> None:
        """The second comes while the interrupted call itself undoes what it began."""
        end = lifecycle._end

        def ending() -> None:
            if sys.gettrace() is not None:  # the first has not come: Python stops tracing when it does
                end()
            elif interrupted(end, second):
                self.done += 1
                raise KeyboardInterrupt

        self.prepare()
        with monkeypatch.context() as patched:
            patched.setattr(lifecycle, "_end", ending)
            interrupted(self.action, at)
        self._free_lock(at)
        vtensor.disable()
        self.is_off(f"{at}, and {second}")

    def _free_lock(self, at: Point) -> None:
        """Between a ``with`` block and its end an exception keeps the lock: a gap of Python where no signal comes."""
        while lifecycle._lock._is_owned():  # type: ignore[attr-defined]
            assert "with _lock:" in str(at), f"the lock is kept after {at}"
            lifecycle._lock.release()
            self.kept_lock += 1


CASES: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
    "enable": (lambda: None, on),
    "larger": (lambda: on(BUDGETS[1]), on),
    "smaller": (on, lambda: on(BUDGETS[1])),
    "disable": (on, vtensor.disable),
    "block": (lambda: None, block),
}


@pytest.fixture(params=["memory", "ordered"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Also the device on which more of torch is replaced."""
    if request.param == "ordered":
        module = native.load()

        def start(config: Any) -> None:
            module.parts.start_late(
                config.budget_chunks, config.chunk, config.host, config.policy, config.min_size, 1, False
            )

        monkeypatch.setattr(lifecycle, "_start", start)
    yield
    vtensor.disable()


def check(trial: Trial, points: list[Point], what: str) -> None:
    for point in points:
        trial.interrupt(point)
    print(f"{what}: {trial.done} of {len(trial.points)} points, {trial.kept_lock} of them at the end of 'with _lock'")


@pytest.mark.parametrize("what", CASES)
def test_an_exception_at_every_tenth_point(what: str, device: None) -> None:
    trial = Trial(*CASES[what])
    check(trial, thinned(trial.points)[::10], what)


@pytest.mark.long
@pytest.mark.parametrize("what", CASES)
def test_an_exception_at_any_point(what: str, device: None) -> None:
    trial = Trial(*CASES[what])
    few = set(thinned(trial.points))
    check(trial, [p for p in trial.points if p in few or p.event != "opcode"], what)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_signals_at_any_moment() -> None:
    """As Ctrl-C comes: not between a ``with`` block and its end, so the lock is never kept.

    Python drops what is raised within a finalizer or a callback of the garbage collector (Hypothesis has one), as it
    does with anybody's Ctrl-C: then nothing was interrupted, and the signal is sent again.
    """
    trial = Trial(*CASES["enable"])
    rang = False

    def interrupt(*_given: Any) -> None:
        nonlocal rang
        rang = True
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGVTALRM, interrupt)
    came = 0
    try:
        for turn in range(100):
            with pytest.raises(KeyboardInterrupt):
                rang = True
                while True:
                    if rang:
                        rang = False
                        signal.setitimer(signal.ITIMER_VIRTUAL, 1e-5 * (turn + 1))
                    block()
                    on()
                    vtensor.disable()
            came += 1
            assert not lifecycle._lock._is_owned()  # type: ignore[attr-defined]
            vtensor.disable()
            trial.is_off("a signal")
    finally:
        signal.signal(signal.SIGVTALRM, before)
    print(f"signals: {came}")


def test_a_signal_while_disable_waits_for_an_analysis(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial(*CASES["disable"])
    on()
    running, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def slow(*_given: Any) -> None:
        running.set()
        may_end.wait(60)
        ended.set()
        raise lgm.InfeasibleError("none", 2, 1, "none")

    monkeypatch.setattr(planning.maker, "make_recording", slow)
    planner = planning.current()
    planner.maker.work.start(lambda: planner.maker._analyze({}, lgm.Device(1, 1, 1)))
    assert running.wait(60)
    ctrl_c = threading.Timer(0.2, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        ctrl_c.start()
        with pytest.raises(KeyboardInterrupt):
            vtensor.disable()
    finally:
        signal.signal(signal.SIGINT, before)
        ctrl_c.join()
    assert not vtensor.is_enabled() and not ended.is_set()
    end = threading.Timer(0.2, may_end.set)
    end.start()
    vtensor.disable()
    assert ended.is_set(), "it did not wait"
    while any(thread.name == "vtensor-planner" for thread in threading.enumerate()):
        time.sleep(0.001)
    trial.is_off("a signal while it waited")


@pytest.mark.parametrize("what", CASES)
def test_an_exception_and_another_while_it_is_undone(what: str, device: None) -> None:
    trial = Trial(*CASES[what])
    draw = random.Random(1)
    firsts, seconds = thinned(trial.points), thinned(Trial(*CASES["disable"]).points)
    for _ in range(60):
        trial.interrupt(draw.choice(firsts), second=draw.choice(seconds))
    print(f"{what}: {trial.done} pairs of points")


@pytest.mark.parametrize("what", ["enable", "block"])
def test_two_exceptions_in_one_call(what: str, device: None, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial(*CASES[what])
    draw = random.Random(2)
    seconds = [p for p in thinned(Trial(*CASES["disable"]).points) if p.code is not vtensor.disable.__code__]
    firsts = thinned(trial.points)
    for _ in range(150):
        trial.interrupt_twice(draw.choice(firsts), draw.choice(seconds), monkeypatch)
    print(f"{what}: {trial.done} pairs of points")
    assert trial.done > 20


def test_the_core_is_loaded_by_the_next_call() -> None:
    module = native.load()

    def first_load() -> None:
        native.load.cache_clear()
        native.load()

    points = thinned(points_of(first_load))[::3]
    for point in points:
        assert interrupted(first_load, point)
        assert native.load().start is module.start, point
    print(f"load: {len(points)} points")


def test_a_block_interrupted_before_it_begins_leaves_the_session_around_it() -> None:
    def inner() -> None:
        with vtensor.enabled(BUDGETS[1]):
            pass

    on()
    first = next(point for point in points_of(inner) if point.code.co_name == "enter")
    assert interrupted(inner, first)
    assert vtensor.memory_stats()["budget_bytes"] == BUDGETS[0]
