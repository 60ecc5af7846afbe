"""Plans are made beside the program, in a process of their own (:mod:`lgm.helper`).

In a thread of the program an analysis of some seconds made each step of a small model up to ten times as long: it takes
Python's lock, and a core from OpenMP's threads, which wait for each other. The first plan is made in less than a
second, and each iteration without one is slow: the helper takes its turn with the program for it. For what is only
better than a plan that is there it runs where cores are idle; where none ever is, it takes turns, but gives way. A
first plan that takes no longer than starting it would is made in the thread.

Covers: one helper for all sessions of this process, begun when a plan will soon be wanted; giving up on it; analysing
in the thread where there can be none (``VTENSOR_ANALYSIS=here``, no Python to start).
Leaves: when a plan is made (``planner``), which are (``stages``), how (:mod:`lgm`).
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import selectors
import subprocess
import sys
import threading
import time
from enum import Enum, auto
from pathlib import Path

import lgm
from lgm.helper import Answer, Asked, Failed, Infeasible, Order, Question, Ready, Search, framed, receive
from lgm.placing import orders as placing
from lgm.placing.orders import Orders

from ..logs import log

__all__ = [
    "FEW", "Abandoned", "Busy", "Priority", "abandon", "analyze", "analyze_here", "begin", "is_beside", "orders",
    "prepare",
]  # fmt: skip

# It gives way before it imports anything, which takes longer than some analyses.
_START = """
import os, sys
os.nice({nice})
if {aside} and hasattr(os, "SCHED_IDLE"):
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
sys.path[:] = {path!r}
from lgm.helper import main
main()
"""
FEW = 400  # operations, for which a first plan takes a fifth of a second, some half a second
_WHILE = 0.5  # seconds
_SHARE = 0.5  # of them a helper must have had that runs only where cores are idle, or it takes turns with others
_NICE = 10  # for a plan that is only better than one that is there


class Abandoned(Exception):
    """Nobody wants the plan any more."""


class Busy(Exception):
    """No core is idle for it, and it is not worth the time of those that are not."""


class Priority(Enum):
    """How much of a machine's time a plan is worth."""

    FIRST = auto()  # there is none yet: it takes its turn with the program
    BETTER = auto()  # where no core is idle it takes turns, but gives way
    IDLE = auto()  # only what others leave; Busy is raised where that is nothing


def _seconds(pid: int) -> float:
    """Of processor time that a process had; of one that ended, without end."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return math.inf
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class _Helper:
    """The process, if there is one. One question at a time; ``abandon`` from any thread."""

    def __init__(self) -> None:
        self._asking = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        asked = os.environ.get("VTENSOR_ANALYSIS", "")
        if asked not in ("", "here"):
            log.warning("VTENSOR_ANALYSIS=%s is unknown; there is 'here' only", asked)
        self.works = asked != "here"
        self._aside = True  # cores are idle, as far as is known: it needs only the time that others leave
        self._gives_way = False  # the process does; there is no way back
        self._abandoned = False

    def analyze(self, search: Search, priority: Priority) -> lgm.Plan:
        with self._asking:
            answer = self._ask(search, priority) if self.works else None
        if answer is None:
            return self.here(search)
        self._check()
        match answer:
            case lgm.Plan():
                return answer
            case Infeasible(operation, needed, budget, text):
                raise lgm.InfeasibleError(operation, needed, budget, text)
            case Failed(why):
                raise RuntimeError(why)
        raise RuntimeError(f"the helper answered {answer!r}")

    def orders(self, plan: lgm.Plan, seated: int | None) -> Orders:
        """By the process where seats are given out, which takes seconds for large iterations."""
        answer = None
        if seated is not None and self.works and plan.trace.operations > FEW:
            with self._asking:
                answer = self._ask(Order(plan, seated), Priority.BETTER if self._gives_way else Priority.FIRST)
        self._check()
        return answer if isinstance(answer, Orders) else placing.orders(plan, seated)

    def prepare(self) -> None:
        """Begin the process, unless there is one or somebody asks."""
        if not self._asking.acquire(blocking=False):
            return
        try:
            if self.works and self._process is None:
                self._ask(Ready())
        except Abandoned:
            pass
        finally:
            self._asking.release()

    def here(self, search: Search) -> lgm.Plan:
        """By the thread that asks."""
        self._check()
        return lgm.analyze(search.trace, search.device, recompute=search.recompute, hasty=search.hasty)

    def _ask(self, asked: Asked, priority: Priority = Priority.FIRST) -> Answer | None:
        """None if there is no helper, and will be none."""
        first = priority is Priority.FIRST
        if first and self._gives_way:
            self.end()
        for _ in range(3):  # it may have ended, as nobody asked for a while; and see _is_answered()
            aside = self._aside and not first
            if priority is Priority.IDLE and not aside:
                raise Busy
            question = Question(asked, 0 if first or aside else _NICE, aside)
            try:
                process = self._process
                if process is None or process.poll() is not None:
                    process = self._begin(question)
                assert process.stdin is not None and process.stdout is not None
                self._check()
                self._gives_way = not first
                if not self._is_answered(process, framed(question), watch=aside):
                    self._aside = False
                    self.end()
                    continue
                answer: Answer = receive(process.stdout)
                return answer
            except (OSError, EOFError, ValueError) as error:
                self.end()
                self._check()
                log.debug("no process for analyses: %s", error)
        self.works = False
        log.warning(
            "cannot start the planning process (VTENSOR_LOG=debug says why): threads of the program make the plans, "
            "and steps are slow while they do"
        )
        return None

    def _check(self) -> None:
        if self._abandoned:
            raise Abandoned("the session ended before it was made")

    def _is_answered(self, process: subprocess.Popen[bytes], question: bytes, watch: bool) -> bool:
        """Asks, and waits until the answer comes; with `watch`, False if the cores are too busy for that ever to be.

        A question may be larger than a pipe, and writing it would wait for one who never gets to read.
        """
        assert process.stdin is not None and process.stdout is not None
        os.set_blocking(process.stdin.fileno(), False)
        left, had, until = memoryview(question), _seconds(process.pid), time.monotonic() + _WHILE
        with selectors.DefaultSelector() as pipes:
            pipes.register(process.stdout, selectors.EVENT_READ)
            pipes.register(process.stdin, selectors.EVENT_WRITE)
            while True:
                ready = [key.fileobj for key, _ in pipes.select(max(until - time.monotonic(), 0.0) if watch else None)]
                if process.stdout in ready:
                    return True
                if process.stdin in ready:
                    left = left[os.write(process.stdin.fileno(), left) :]
                    if not left:
                        pipes.unregister(process.stdin)
                if watch and time.monotonic() >= until:
                    before, had, until = had, _seconds(process.pid), until + _WHILE
                    if had - before < _SHARE * _WHILE:
                        return False

    def _begin(self, question: Question) -> subprocess.Popen[bytes]:
        """One that gives way as it will be asked to."""
        self.end()
        if not sys.executable:
            raise OSError("no Python to start")
        # Programs put more there than strings; whatever else there is Python passes over.
        path = [os.fsdecode(entry) for entry in sys.path if isinstance(entry, str | bytes | os.PathLike)]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START.format(path=path, nice=question.nice, aside=question.aside)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            process_group=0,  # Ctrl-C is the program's alone; a session of its own would be as important as the program
        )
        return self._process

    def begin(self) -> None:
        self._abandoned = False

    def abandon(self) -> None:
        self._abandoned = True
        if self._asking.locked() and (process := self._process) is not None:
            with contextlib.suppress(OSError):
                process.kill()

    def close(self) -> None:
        """The program ends: whoever waits is told so, and no other process begins."""
        self.works, self._abandoned = False, True
        self.end()

    def end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            process.kill()
            process.wait(timeout=1)


_helper = _Helper()
_of_parents: list[_Helper] = []  # kept, so that nobody waits for processes that are not this one's


def analyze(
    trace: lgm.Trace,
    device: lgm.Device,
    recompute: lgm.Recompute,
    *,
    hasty: bool = False,
    priority: Priority = Priority.FIRST,
) -> lgm.Plan:
    """What :func:`lgm.analyze` returns and raises; :class:`Abandoned` if no plan is wanted."""
    return _helper.analyze(Search(trace, device, recompute, hasty), priority)


def orders(plan: lgm.Plan, seated: int | None) -> Orders:
    """What :func:`lgm.placing.orders.orders` returns; :class:`Abandoned` if it is not wanted."""
    return _helper.orders(plan, seated)


def analyze_here(trace: lgm.Trace, device: lgm.Device, recompute: lgm.Recompute, *, hasty: bool = False) -> lgm.Plan:
    """The same, by this thread."""
    return _helper.here(Search(trace, device, recompute, hasty))


def is_beside() -> bool:
    """Whether :func:`analyze` does not take the time of this thread."""
    return _helper.works


def prepare(allocations: int) -> None:
    """A plan will be wanted of an iteration with about so many allocations: a helper is there by then, which takes half
    a second to begin where all cores are busy.
    """
    if allocations > FEW // 2 and _helper.works:
        with contextlib.suppress(RuntimeError):  # no thread can be started: then it is begun when it is asked
            threading.Thread(target=_helper.prepare, name="vtensor-helper", daemon=True).start()


def begin() -> None:
    """Plans are wanted again."""
    _helper.begin()


def abandon() -> None:
    """No plan is wanted any more, nor the one under way."""
    _helper.abandon()


def _forget() -> None:
    """A forked child has a helper of its own: its parent's answers are not for it."""
    global _helper
    _of_parents.append(_helper)
    _helper = _Helper()


os.register_at_fork(after_in_child=_forget)
atexit.register(lambda: _helper.close())  # noqa: PLW0108 -- whichever it is by then
