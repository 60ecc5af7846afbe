"""Says so when an engine stands still: stacks of all threads, and the engine's own figures.

Covers: when "no progress for a minute" is worth a word, and what is written then. ``enable()`` starts it with
``VTENSOR_LOG=debug``; the tests run with it.
Leaves: counting (``kernels/engine/ground.h``). Nothing is ended or mended: a slow program gets its word, and goes on.

Standing still means: a call is inside an engine, and for that long none ended and no wait of one did. A program
that computes, waits for data or sleeps has no call inside. The thread here waits for no lock of the engine's. It needs
Python's own, which a thread that stands inside the engine may hold; so Python's ``faulthandler``, which needs none, is
told each time to write the stacks if it is not told otherwise in time. (Whoever keeps Python's lock that long for
another reason gets these, too.)
"""

from __future__ import annotations

import faulthandler
import sys
import threading
from pathlib import Path
from typing import TextIO

from ..native.core import Core

__all__ = ["Watchdog", "start", "stop"]

SECONDS = 60.0
_LOOKS = 4  # in that time
_running: Watchdog | None = None


class Watchdog(threading.Thread):
    """Looks at `core` a few times in `seconds`, and writes to `file`, which must be a real one."""

    def __init__(self, core: Core, seconds: float = SECONDS, file: TextIO | None = None) -> None:
        super().__init__(name="vtensor-watchdog", daemon=True)
        self._core, self._seconds, self._file = core, seconds, file or sys.__stderr__ or sys.stderr
        self._over = threading.Event()
        self.fired = 0
        """How often it wrote; once each time an engine stands."""

    def run(self) -> None:
        """Look until stopped."""
        last, looks = -1, 0
        while not self._over.wait(self._seconds / _LOOKS):
            steps, busy = self._core.progress()
            if steps != last or not busy:
                last, looks = steps, 0
                # Later than here, where there is more to say: only if Python's lock is not to be had.
                faulthandler.dump_traceback_later(1.5 * self._seconds, file=self._file)
                continue
            looks += 1
            if looks == _LOOKS:
                faulthandler.cancel_dump_traceback_later()
                self.fired += 1
                self._write()

    def stop(self) -> None:
        """Look no more; returns when it does not."""
        self._over.set()
        self.join()
        faulthandler.cancel_dump_traceback_later()

    def _write(self) -> None:
        def say(text: str) -> None:
            print(f"vtensor: {text}", file=self._file, flush=True)

        say(f"the engine made no progress for {self._seconds:g} s, though a call is inside it")
        faulthandler.dump_traceback(file=self._file, all_threads=True)
        for task in sorted(Path("/proc/self/task").glob("*")):  # those of OpenMP and of copies, which Python knows not
            say(f"thread {task.name} {_line(task / 'comm')}: {_line(task / 'wchan')}")
        figures = self._core.look()
        if figures is None:
            say("another thread holds the engine's lock, or there is no engine")
            return
        say(f"validate: {figures['broken'] or 'whole'}")
        for name, value in figures.items():
            if name != "broken":
                say(f"{name} = {value}")


def _line(path: Path) -> str:
    try:
        return path.read_text().strip() or "?"
    except OSError:  # the thread ended, or the kernel does not tell
        return "?"


def start(core: Core, seconds: float = SECONDS, file: TextIO | None = None) -> None:
    """One for the process; while it runs, another start does nothing."""
    global _running
    if _running is None or not _running.is_alive():
        _running = Watchdog(core, seconds, file)
        _running.start()


def stop() -> None:
    """End it, if it runs."""
    global _running
    if _running is not None and _running.is_alive():
        _running.stop()
    _running = None
