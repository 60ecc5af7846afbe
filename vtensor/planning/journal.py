"""What each iteration did, for the page of a run and for who watches it.

Covers: seconds, bytes moved and recomputed, whether it followed its plan or where it left it; a line about the newest.
Leaves: where iterations end (``planner``), drawing (``lgm.reports``).
"""

from __future__ import annotations

import collections
import time
from typing import Any

from lgm.progress import is_watched

from ..logs import say
from ..native.core import Core, PlanCounters, Snapshot
from ..settings.sizes import format_bytes

__all__ = ["Journal"]

_MOST = 2000  # iterations, the newest
_Moment = tuple[float, Snapshot, PlanCounters]


class Journal:
    """One row for each iteration, from the first boundary on."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._before: _Moment | None = None
        self._next_line: float | None = None  # when; None: nobody watches
        self._rows: collections.deque[dict[str, Any]] = collections.deque(maxlen=_MOST)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The newest, oldest first."""
        return list(self._rows)

    def note(self) -> None:
        """An iteration ended."""
        now = time.perf_counter(), self._core.snapshot(), self._core.plan_counters()
        if self._before is not None:
            self._rows.append(self._row(self._before, now))
            if self._next_line is not None and now[0] >= self._next_line:
                self._show(now[0], self._rows[-1], now[1])
        self._before = now

    def watch(self) -> None:
        """Show the newest on stderr: every two seconds on a terminal, every ten elsewhere.

        In lines of their own, as the program prints there, too.
        """
        self._next_line = 0.0

    def _show(self, now: float, row: dict[str, Any], shot: Snapshot) -> None:
        held, budget = (format_bytes(n * shot["chunk_bytes"]) for n in (shot["held_chunks"], shot["budget_chunks"]))
        self._next_line = now + (2.0 if is_watched() else 10.0)
        say(
            f"vtensor: iteration {row['iteration']}, {row['seconds']} s; held {held} of {budget}; "
            f"out {row['out']}, in {row['in']}, recomputed {row['recomputed']}; {row['plan']}"
        )

    @staticmethod
    def _row(before: _Moment, now: _Moment) -> dict[str, Any]:
        (begun, was, plans_were), (ended, is_, plans) = before, now
        what = "no plan yet" if not plans_were["plans"] else "not one that is planned"
        if plans["planned_iterations"] > plans_were["planned_iterations"]:
            what = "followed its plan"
        elif plans["deviations"] > plans_were["deviations"]:
            left_at = plans["left_at"]
            what = "ended before its plan did" if left_at is None else f"left its plan at {left_at[0]}, {left_at[1]}"
            if again := plans["rejoined"] - plans_were["rejoined"]:
                what += f", and took it up again {again} times"
        return {
            "iteration": plans["iterations"],
            "seconds": f"{ended - begun:.3f}",
            "out": format_bytes(is_["moved_out_bytes"] - was["moved_out_bytes"]),
            "in": format_bytes(is_["moved_in_bytes"] - was["moved_in_bytes"]),
            "recomputed": format_bytes(is_["made_bytes"] - was["made_bytes"]),
            "plan": what,
        }
