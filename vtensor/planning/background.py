"""A thread for one task at a time, whose end can be waited for again after Ctrl-C ended the wait.

Covers: a gap of Python 3.11, where a ``join()`` that an exception ended takes a thread for ended that still runs;
ending the task with the program. (Python would end the thread wherever it next asks for the lock of the interpreter:
within C++ code, such as NumPy's ``unique``, that aborts the program.)
Leaves: what the task is (``maker``).
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

__all__ = ["Background"]


_SOON = 0.2  # seconds in which most tasks are done
_AGAIN = 0.05


class Background:
    """One task at a time."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._running = threading.RLock()  # held by the thread
        self._stopped = False

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self, task: Callable[[], None]) -> None:
        """Raises RuntimeError if no thread can be started (``ulimit -u``, a container's limit)."""
        # Kept before it is started: a thread that runs is always known.
        self._thread = threading.Thread(target=self._run, args=(task,), name=self._name, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until the task under way, if any, is done."""
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        if thread.is_alive():
            thread.join()
        with self._running:
            pass

    def stop(self) -> None:
        """Wait, and start no other: a thread that has not come to its task yet leaves it. May be repeated."""
        self._stopped = True
        self.wait()

    def end(self) -> None:
        """Stop, and let the task under way go no further than to its next line. To be called when the program ends."""
        self._stopped = True
        thread, soon = self._thread, _SOON
        while thread is not None and thread.is_alive():
            thread.join(soon)
            soon = _AGAIN
            if thread.is_alive() and thread.ident is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))

    def _run(self, task: Callable[[], None]) -> None:
        with self._running:
            if not self._stopped:
                task()
