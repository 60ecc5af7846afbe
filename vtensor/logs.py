"""What vtensor says of itself: one logger, to standard error where ``VTENSOR_LOG`` asks for it.

Covers: ``VTENSOR_LOG=info`` and ``debug``; warnings of a program that sets up no logging; errors that are for the log
only; what is said to people while their program runs. Leaves: what is said, to whoever says it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import traceback
from collections.abc import Iterator
from typing import TextIO

__all__ = ["answer", "log", "ours_only", "say", "set_log_level"]

_CALLED = {"vtensor", "lgm", "torch", "numpy"}  # whose errors are ours: what runs here calls nobody else

log = logging.getLogger("vtensor")


def _named(record: logging.LogRecord) -> bool:
    """Python's last resort, which prints warnings where no logging is set up, does not say whose they are."""
    if not log.hasHandlers():
        record.msg = f"vtensor: {record.msg}"
    return True


log.addFilter(_named)


def set_log_level() -> None:
    """Do what ``VTENSOR_LOG`` says; unset, the program's own settings of the logger ``vtensor`` hold."""
    asked = os.environ.get("VTENSOR_LOG", "")
    level = logging.getLevelNamesMapping().get(asked.upper())
    if level is None:
        if asked:
            log.warning("VTENSOR_LOG=%s is no level: debug, info, warning or error", asked)
        return
    log.setLevel(level)
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("vtensor: %(message)s"))
        handler.addFilter(lambda _: not _program_shows_it())
        log.addHandler(handler)


def _program_shows_it() -> bool:
    """Whether what is logged comes to a terminal anyway, as after ``logging.basicConfig()``."""
    shown = (getattr(handler, "stream", None) for handler in logging.getLogger().handlers)
    return log.propagate and any(stream is not None and stream in (sys.stdout, sys.stderr) for stream in shown)


def say(text: str) -> None:
    """To the program's stderr; where it closed that, to the process's; where that is closed, to nobody."""
    _say(text, sys.stderr, sys.__stderr__)


def answer(text: str) -> None:
    """What was asked for, to stdout; where the program closed that, as :func:`say`."""
    _say(text, sys.stdout, sys.__stdout__, sys.stderr, sys.__stderr__)


def _say(text: str, *streams: TextIO | None) -> None:
    """To the first that takes it."""
    for stream in streams:
        with contextlib.suppress(OSError, ValueError):
            if stream is not None:
                print(text, file=stream, flush=True)
                return


@contextlib.contextmanager
def ours_only(what: str) -> Iterator[None]:
    """Errors within are for the log: the program has no part in them, and goes on.

    But for what a signal handler of its own raises, which runs between any two lines (a time limit by ``SIGALRM``).
    """
    try:
        yield
    except Exception as error:
        if not _is_ours(error):
            raise
        log.debug(what, exc_info=True)


def _is_ours(error: Exception) -> bool:
    modules = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__))
    roots = {module.partition(".")[0] for module in modules}
    return all(root in _CALLED or root in sys.stdlib_module_names for root in roots)
