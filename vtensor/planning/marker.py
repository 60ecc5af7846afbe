"""Whose steps end iterations, where several optimizers take turns, or threads that train, or there is no optimizer.

One optimizer marks them. Another takes over when that is gone, or has not stepped for longer than it ever rested. Where
none was heard for a while, each backward pass ends one, until one is: a loop that accumulates gradients has a few of
them before its first step.

Optimizers that step within a backward pass, each when its gradient is there, end one together, when the pass ends.

Covers: that choice.
Leaves: hearing of steps, and what happens at the end of an iteration (``planner``).
"""

from __future__ import annotations

import threading
import weakref
from enum import IntEnum
from typing import Any

__all__ = ["Marker", "Rank"]

_MOST = 8  # steps of others until one of them takes over; and backward passes until they are taken for iterations
_KNOWN = 4  # steps of its own after which it is known how many others there are between


class Rank(IntEnum):
    """Of who says that an iteration ends: it counts before all lower ones."""

    GRADIENTS = 0
    """``torch.autograd.grad`` came to its end: there may be several in one, to differentiate twice."""
    BACKWARD = 1
    STEP = 2
    """Of an optimizer."""
    WHOLE = 3
    """It says what is one iteration, and is no optimizer."""


class Marker:
    """Of one session."""

    def __init__(self) -> None:
        self._owner: weakref.ref[Any] | None = None
        self._thread: int | None = None
        self._rank = Rank.GRADIENTS  # of the owner, or of passes while there is none
        self._passes = 0  # of that rank, while there is none
        self._turns = 0  # steps of the owner
        self._others = 0  # of others since its last
        self._rests = 0  # the most of those between two of its own
        self._compiled = False  # steps are, of which nobody tells
        self._here = threading.local()  # .stepped: an optimizer did, within the pass under way

    @property
    def hears(self) -> bool:
        """Whether an iteration ended."""
        return self._owner is not None

    def steps_within_a_pass(self) -> None:
        """An optimizer stepped while gradients come, as one of many may, each when its own is there."""
        self._here.stepped = True

    def steps_are_compiled(self) -> None:
        """By ``torch.compile``, just now: none of that optimizer will be heard, so each pass ends an iteration."""
        self._compiled = True

    def rank_of_pass(self, accumulated: bool) -> Rank:
        """What the end of a backward pass counts as: the step of all optimizers that stepped within it, if any did."""
        stepped, self._here.stepped = getattr(self._here, "stepped", False), False
        if stepped:
            return Rank.STEP
        return Rank.BACKWARD if accumulated else Rank.GRADIENTS

    def ends(self, who: Any, rank: Rank = Rank.STEP) -> bool:
        """`who` made a step in this thread, or a pass: whether an iteration ends with it."""
        known = self._owner() if self._owner is not None else None
        here = threading.get_ident()
        if rank < Rank.STEP and not self._counts(known, rank):
            return False
        if known is who:
            self._turns += 1
            self._rests = max(self._rests, self._others)
        else:
            heir = (known is None and self._thread in (None, here)) or rank > self._rank
            self._others += 1
            if not heir and self._others <= self._patience(here):
                return False
            self._turns = self._rests = 0
        self._owner, self._thread, self._others, self._rank = weakref.ref(who), here, 0, rank
        self._passes = 0
        return True

    def _counts(self, known: Any, rank: Rank) -> bool:
        """Whether a pass may end an iteration: there are no optimizers, as far as was heard."""
        if known is not None:
            return rank >= self._rank
        if rank != self._rank:
            if rank < self._rank < Rank.STEP:
                return False
            self._rank, self._passes = rank, 0
        self._passes += 1
        return self._compiled or self._passes > _MOST

    def _patience(self, here: int) -> int:
        """Steps of others that mean nothing: threads come in no order, one thread does what it did."""
        if self._turns < _KNOWN or here != self._thread:
            return _MOST
        return min(2 * self._rests + 1, _MOST)
