"""How far long work is, on stderr, where a person looks on.

Covers: a bar. Leaves: what is counted. ``vtensor`` uses this too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

__all__ = ["Bar", "Progress"]

Progress = Callable[[str, float], None]
"""Told what is done, and the share of it."""

_WIDTH = 24


class Bar:
    """Call it with what is done and the share of it; nothing is shown where stderr is no terminal."""

    def __init__(self) -> None:
        self.on = sys.stderr.isatty()

    def __call__(self, what: str, share: float) -> None:
        if self.on:
            filled = round(share * _WIDTH)
            end = "\r" if share < 1 else "\r" + " " * (_WIDTH + 36) + "\r"
            bar = "#" * filled + "." * (_WIDTH - filled)
            print(f"\r  {what:<12} [{bar}] {share:4.0%}", end=end, file=sys.stderr, flush=True)
