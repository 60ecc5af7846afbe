"""Threads that take turns at one program.

Covers: one thread for each task, of which one runs at a time; whose turn it is; what a thread hands to the next
(torch's thread state, the recording, generators); ending all when one fails.
Leaves: where tasks stop (``stops``), what is done between turns (``trainer``).

A task stops with a *rank*, which only grows. The task of the lowest rank runs, of several the first: so all are past
one stop before any is past the next, and they pass it in their order. One that has no stop where others have one may
come too early to what follows, and waits for those before it.

Why threads, and not coroutines: a task stops in the middle of torch's backward, which is C++ and has a stack and
thread-local state of its own.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any

import torch

from ...native.core import Core
from ..generators import Generators

__all__ = ["Weave"]


class _Cancelled(BaseException):
    """Another task failed; this one ends where it stopped."""


class _Task:
    def __init__(self, index: int, run: Callable[[int], None]) -> None:
        self.index, self.run = index, run
        self.rank = 0
        self.has_passed: Callable[[int], bool] | None = None  # it waits until this is so of all before it
        self.go = threading.Semaphore(0)
        self.key = 0  # the core's name for its thread
        self.ended = False
        self.error: BaseException | None = None
        self.thread: threading.Thread | None = None


class Weave:
    """Runs of one function, woven.

    Parameters
    ----------
    core
        The native core.
    generators
        What to set when one goes on.
    """

    def __init__(self, core: Core, generators: Generators) -> None:
        self._core, self._generators = core, generators
        self._back = threading.Semaphore(0)
        self._mine = threading.local()
        self._cancelled = False
        self._running: _Task | None = None
        self._tasks: list[_Task] = []
        self._state: Any = None
        self._stream: Any = None
        self._key = 0

    def current(self) -> int | None:
        """The index of the task that calls this; None if none does."""
        task: _Task | None = getattr(self._mine, "task", None)
        return None if task is None else task.index

    def rank(self, index: int) -> int:
        """Of a task."""
        return self._tasks[index].rank

    def run(
        self, function: Callable[[int], None], count: int, last: Callable[[], int], between: Callable[[int], None]
    ) -> None:
        """Run the function with 0 to count - 1. Raises what one of them raised, once all have ended.

        `between` is called by the calling thread with each rank from 1 to the `last`, as it is known in the end, when
        no task stops before it any more.
        """
        self._state, self._key = self._core.TorchState(), self._core.this_thread()
        on_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        self._stream = torch.cuda.current_stream() if on_gpu else None
        tasks = self._tasks = [_Task(index, function) for index in range(count)]
        reached = 0
        try:
            while todo := [task for task in tasks if not task.ended]:
                lowest = min(task.rank for task in todo)
                for rank in range(reached + 1, lowest + 1):
                    between(rank)
                reached = max(reached, lowest)
                task = min((each for each in todo if not self._waits(each)), key=lambda each: (each.rank, each.index))
                self._give_turn(task)
                if task.error is not None:
                    error, task.error = task.error, None
                    raise error
            for rank in range(reached + 1, last() + 1):
                between(rank)
        finally:
            self._end(tasks)

    def stop(self, rank: int) -> None:
        """The calling task stops until all others have come as far. Nothing if it has been there already."""
        task: _Task = self._mine.task
        if self._cancelled:
            raise _Cancelled
        if rank <= task.rank:
            return
        task.rank = rank
        self._rest(task)

    def wait_for_those_before(self, has_passed: Callable[[int], bool]) -> None:
        """The calling task stops until each one before it has passed, or has ended."""
        task: _Task = self._mine.task
        if self._cancelled:
            raise _Cancelled
        task.has_passed = has_passed
        if self._waits(task):
            self._rest(task)
        task.has_passed = None

    def is_behind_one_that_waits(self) -> bool:
        """Whether one before the calling task waits for those before it: the caller is not to overtake it."""
        task: _Task = self._mine.task
        return any(one.has_passed is not None and not one.ended for one in self._tasks[: task.index])

    def _waits(self, task: _Task) -> bool:
        if task.has_passed is None:
            return False
        return not all(one.ended or task.has_passed(one.index) for one in self._tasks[: task.index])

    def _rest(self, task: _Task) -> None:
        self._generators.leave(task.index)
        self._give_back()
        self._take_turn(task)

    def _give_turn(self, task: _Task) -> None:
        if task.thread is None:
            inside = contextvars.copy_context()
            # Kept before it is started: a thread that runs is always known.
            task.thread = threading.Thread(
                target=inside.run, args=(self._live, task), name=f"microbatch {task.index}", daemon=True
            )
            task.thread.start()
            self._back.acquire()
        self._core.pass_turn(task.key)
        self._running = task
        task.go.release()
        self._back.acquire()
        self._running = None

    def _take_turn(self, task: _Task) -> None:
        task.go.acquire()
        if self._cancelled:
            raise _Cancelled
        self._generators.enter(task.index)

    def _give_back(self) -> None:
        self._core.pass_turn(self._key)
        self._back.release()

    def _live(self, task: _Task) -> None:
        self._mine.task = task
        task.key = self._core.this_thread()
        self._back.release()
        try:
            before = self._state.set()
            try:
                if self._stream is not None:
                    torch.cuda.set_stream(self._stream)
                # Backward on this thread, also of what is on a GPU: it stops in its middle.
                with torch.autograd.set_multithreading_enabled(False):
                    self._take_turn(task)
                    task.run(task.index)
                    self._generators.leave(task.index)
            finally:
                before.set()
        except _Cancelled:
            pass
        except BaseException as error:
            task.error = error
        finally:
            task.ended = True
            self._give_back()

    def _end(self, tasks: list[_Task]) -> None:
        """All threads end, one after the other: the one that runs at its next stop, the others where they stand.

        No thread is left, whatever interrupts this.
        """
        self._cancelled = True
        interrupted: KeyboardInterrupt | None = None
        for task in sorted(tasks, key=lambda each: each is not self._running):
            if task.thread is None:
                continue
            task.go.release()  # also one that is not alive yet ends by this
            while task.thread.is_alive():
                try:
                    task.thread.join()
                except KeyboardInterrupt as error:
                    interrupted = error
        tasks.clear()  # what they hold must not live as long as a traceback
        if interrupted is not None:
            raise interrupted
