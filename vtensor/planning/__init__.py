"""From iterations to plans: where one ends, its record, the process that makes a plan, the plan for the core.

``planner`` is told of each iteration's end (``marker``); ``maker`` waits for plans in a thread (``background``),
``stages`` are which are made of an iteration, and ``helper`` asks :mod:`lgm`, in a process. ``recordings`` and
``speeds`` say what goes there, ``plans`` what comes back. ``current_planner`` is what others ask of the session's;
``traces`` and ``journal`` are for people.
"""

from __future__ import annotations

from .current_planner import current, listen, newest_plan, step, wait_for_plan

__all__ = ["current", "listen", "newest_plan", "step", "wait_for_plan"]
