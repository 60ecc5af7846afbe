"""How far long work is, on stderr, where a person looks on.

Covers: a bar, whether anybody sees it. Leaves: what is counted. ``vtensor`` uses this too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

__all__ = ["Bar", "Progress", "is_watched", "part", "silent"]

Progress = Callable[[str, float], None]
"""Told what is done, and the share of it."""

_WIDTH = 24


def silent(_what: str, _share: float) -> None:
    """Tells nobody."""


def part(say: Progress, begin: float, end: float) -> Progress:
    """For work that is a part of what `say` is told of, from one share to another."""
    return lambda what, share: say(what, begin + (end - begin) * share)


def is_watched() -> bool:
    """Whether stderr is a terminal; a program may have closed it."""
    return sys.stderr is not None and not sys.stderr.closed and sys.stderr.isatty()


class Bar:
    """Call it with what is done and the share of it; nothing is shown where stderr is no terminal."""

    def __init__(self) -> None:
        self.on = is_watched()

    def __call__(self, what: str, share: float) -> None:
        if self.on:
            filled = round(share * _WIDTH)
            end = "\r" if share < 1 else "\r" + " " * (_WIDTH + 36) + "\r"
            bar = "#" * filled + "." * (_WIDTH - filled)
            print(f"\r  {what:<12} [{bar}] {share:4.0%}", end=end, file=sys.stderr, flush=True)
