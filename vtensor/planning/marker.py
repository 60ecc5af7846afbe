"""Whose steps end iterations, where several optimizers take turns, or threads that train.

One optimizer marks them. Another takes over when that is gone, or has not stepped for longer than it ever rested.

Covers: that choice.
Leaves: hearing of steps, and what happens at the end of an iteration (``planner``).
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

__all__ = ["Marker"]

_MOST = 8  # steps of others until one of them takes over
_KNOWN = 4  # steps of its own after which it is known how many others there are between


class Marker:
    """Of one session."""

    def __init__(self) -> None:
        self._owner: weakref.ref[Any] | None = None
        self._thread: int | None = None
        self._whole = False  # it says what is one iteration, and is no optimizer
        self._turns = 0  # steps of the owner
        self._others = 0  # of others since its last
        self._rests = 0  # the most of those between two of its own

    @property
    def hears(self) -> bool:
        """Whether anybody made a step."""
        return self._owner is not None

    def ends(self, who: Any, *, whole: bool = False) -> bool:
        """`who` made a step in this thread: whether an iteration ends with it."""
        known = self._owner() if self._owner is not None else None
        here = threading.get_ident()
        if known is who:
            self._turns += 1
            self._rests = max(self._rests, self._others)
        else:
            heir = (known is None and self._thread in (None, here)) or whole > self._whole
            self._others += 1
            if not heir and self._others <= self._patience(here):
                return False
            self._turns = self._rests = 0
        self._owner, self._thread, self._others, self._whole = weakref.ref(who), here, 0, whole
        return True

    def _patience(self, here: int) -> int:
        """Steps of others that mean nothing: threads come in no order, one thread does what it did."""
        if self._turns < _KNOWN or here != self._thread:
            return _MOST
        return min(2 * self._rests + 1, _MOST)
