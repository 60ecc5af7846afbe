"""Exceptions at every point of ``enable``, of a change of budget, of ``disable``, and of a ``with`` block.

A trace function raises ``KeyboardInterrupt`` where Ctrl-C could, and where it could not, as Python looks for signals at
few of these points. Whatever an interrupted call left, one more ``disable()`` ends, or one more ``enable()``.
"""

from __future__ import annotations

import faulthandler
import linecache
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
from torch.optim import optimizer

import lgm
import vtensor
from vtensor import gpu, native, planning, session
from vtensor.config import make_config

PAGE = 4096
BUDGETS = 64 * PAGE, 32 * PAGE
PACKAGE = str(Path(vtensor.__file__).parent)


@dataclass(frozen=True)
class Point:
    """An event of a trace: the `nth` of its kind at an instruction of a function, counted from 1."""

    code: CodeType
    event: str
    instruction: int
    line: int
    nth: int

    def __str__(self) -> str:
        text = linecache.getline(self.code.co_filename, self.line).strip()
        where = f"{Path(self.code.co_filename).name}:{self.line} in {self.code.co_name}"
        return f"{where}, {self.event} {self.instruction}, time {self.nth}: {text}"

    @property
    def file(self) -> str:
        return Path(self.code.co_filename).name


def points_of(action: Callable[[], Any]) -> list[Point]:
    """Every event inside the package while `action` runs: calls, lines, instructions, returns."""
    seen: dict[tuple[CodeType, str, int], int] = {}
    found = []

    def note(frame: FrameType, event: str, _argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes = True
        key = frame.f_code, event, frame.f_lasti
        seen[key] = seen.get(key, 0) + 1
        found.append(Point(*key, frame.f_lineno or frame.f_code.co_firstlineno, seen[key]))
        return note

    sys.settrace(note)
    try:
        action()
    finally:
        sys.settrace(None)
    return [point for point in found if point.event != "exception"]


def interrupted(action: Callable[[], Any], at: Point) -> bool:
    """Run `action` with an exception raised at a point; whether it came by there."""
    left = at.nth

    def count(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal left
        if frame.f_code is not at.code:
            return None
        frame.f_trace_opcodes = at.event == "opcode"
        if event == at.event and frame.f_lasti == at.instruction:
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return count

    sys.settrace(count)
    try:
        action()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    return left <= 0


def thinned(points: list[Point]) -> list[Point]:
    """Of a loop, the first two and the last two turns; of checking arguments, which changes nothing, every tenth."""
    last: dict[tuple[CodeType, str, int], int] = {}
    for point in points:
        last[point.code, point.event, point.instruction] = point.nth
    few = [p for p in points if p.nth <= 2 or p.nth > last[p.code, p.event, p.instruction] - 2]
    dull = [p for p in few if p.file in ("config.py", "math_library.py")]
    return [p for p in few if p.file not in ("config.py", "math_library.py")] + dull[::10]


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
        "planner": planning._planner,
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
            assert vtensor.is_enabled() and budget == BUDGETS[0] == session.active_config().budget, at
            assert planning._current().config.budget == budget, at
        vtensor.disable()
        self.is_off(at if second is None else f"{at}, and {second}")

    def interrupt_twice(self, at: Point, second: Point, monkeypatch: pytest.MonkeyPatch) -> None:
        """The second comes while the interrupted call itself undoes what it began."""
        end = session._end

        def ending() -> None:
            if sys.gettrace() is not None:  # the first has not come: Python stops tracing when it does
                end()
            elif interrupted(end, second):
                self.done += 1
                raise KeyboardInterrupt

        self.prepare()
        with monkeypatch.context() as patched:
            patched.setattr(session, "_end", ending)
            interrupted(self.action, at)
        self._free_lock(at)
        vtensor.disable()
        self.is_off(f"{at}, and {second}")

    def _free_lock(self, at: Point) -> None:
        """Between a ``with`` block and its end an exception keeps the lock: a gap of Python where no signal comes."""
        while session._lock._is_owned():  # type: ignore[attr-defined]
            assert "with _lock:" in str(at), f"the lock is kept after {at}"
            session._lock.release()
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
            module.start_late(config.budget_chunks, config.chunk, config.host, config.policy, config.min_size, 1, False)

        monkeypatch.setattr(session, "_start", start)
    yield
    vtensor.disable()


def check(trial: Trial, points: list[Point], what: str) -> None:
    for point in points:
        trial.interrupt(point)
    print(f"{what}: {trial.done} of {len(trial.points)} points, {trial.kept_lock} of them at the end of 'with _lock'")


@pytest.mark.parametrize("what", CASES)
def test_an_exception_at_any_point(what: str, device: None) -> None:
    trial = Trial(*CASES[what])
    check(trial, thinned(trial.points), what)


@pytest.mark.long
@pytest.mark.parametrize("what", CASES)
def test_an_exception_at_every_line(what: str, device: None) -> None:
    trial = Trial(*CASES[what])
    few = set(thinned(trial.points))
    check(trial, [p for p in trial.points if p in few or p.event != "opcode"], what)


def test_signals_at_any_moment() -> None:
    """As Ctrl-C comes: not between a ``with`` block and its end, so the lock is never kept."""
    trial = Trial(*CASES["enable"])

    def interrupt(*_given: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGVTALRM, interrupt)
    came = 0
    try:
        for turn in range(100):
            with pytest.raises(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_VIRTUAL, 1e-5 * (turn + 1))
                while True:
                    block()
                    on()
                    vtensor.disable()
            came += 1
            assert not session._lock._is_owned()  # type: ignore[attr-defined]
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

    monkeypatch.setattr(planning, "make_recording", slow)
    planner = planning._current()
    planner._work = threading.Thread(target=planner._run, args=({}, None), name="vtensor-planner")
    planner._work.start()
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

    points = thinned(points_of(first_load))
    for point in points:
        assert interrupted(first_load, point)
        assert native.load().start is module.start, point
    print(f"load: {len(points)} points")


class FakeGpu:
    """A core and the pool its chunks come from."""

    running = closed = False
    InvalidUse, OutOfMemory = ValueError, MemoryError

    def __init__(self, *, tensors_live: bool) -> None:
        self.tensors_live = tensors_live

    def start_cuda(self, **_settings: Any) -> None:
        self.running = True

    def stop_cuda(self) -> bool:
        was, self.running = self.running, False
        return not (was and self.tensors_live)  # the second time it does not know any more

    def lend(self, chunks: int) -> list[int]:
        return [PAGE] * chunks

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("tensors_live", [False, True])
@pytest.mark.parametrize("multithreaded", [False, True])
def test_a_gpu_is_given_back(tensors_live: bool, multithreaded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(1 << 20, chunk=PAGE)
    core: Any = None

    def fresh(*, live: bool) -> None:
        nonlocal core
        core = FakeGpu(tensors_live=live)
        monkeypatch.setattr(gpu, "make_device_pool", lambda *_: core)
        monkeypatch.setattr(gpu, "_kept", [])

    def start() -> None:
        gpu.start_gpu(core, config)

    def stop() -> None:
        gpu.stop_gpu(core)

    def stop_and_look(at: object) -> None:
        stop()
        assert not core.running and gpu._pool is None, at
        assert not (core.closed and core.tensors_live), f"tensors lost their memory after {at}"
        assert torch.autograd.is_multithreading_enabled() == multithreaded, at

    torch.autograd.set_multithreading_enabled(multithreaded)
    try:
        fresh(live=tensors_live)
        starts, stops = points_of(start), points_of(stop)
        assert core.closed != tensors_live
        for point in starts:
            fresh(live=False)
            assert interrupted(start, point)
            stop_and_look(point)
            assert not gpu._kept, point
        for point in stops:
            fresh(live=tensors_live)
            start()
            assert interrupted(stop, point)
            stop_and_look(point)
    finally:
        torch.autograd.set_multithreading_enabled(True)
    print(f"gpu: {len(starts)} points of a start, {len(stops)} of a stop")
