"""The planner of the session, and what others ask of it.

Covers: beginning and ending it, marking iterations, listening to their ends, the newest plan and why there is none.
Leaves: everything that a planner does (``planner``), turning vtensor on (``session``).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import lgm

from .. import native
from ..errors import NotEnabledError
from ..settings.config import Config
from .helper import begin, orders
from .journal import Journal
from .planner import Planner
from .plans import install, recording_of

__all__ = [
    "as_one_iteration",
    "current",
    "keep_journal",
    "listen",
    "newest_plan",
    "of_each_session",
    "session_ends",
    "start_planner",
    "step",
    "stop_planner",
    "wait_for_plan",
    "why_no_plan",
]

_planner: Planner | None = None
# Of whoever runs the program, which may end a session and begin another: at the beginning of each, and at the end.
_wishes: list[tuple[Callable[[], None], Callable[[], None]]] = []
_UNMARKED = (
    "no iteration ended: that takes a step of a torch.optim optimizer, nine backward passes, some rounds of a loop "
    "that brings the same tensors back each time, or vtensor.step()"
)


def start_planner(config: Config, plan: lgm.Plan | None) -> Planner:
    """Begin to look for iterations. `plan` comes from a file, and is followed from the first boundary on."""
    global _planner
    begin()
    _planner = Planner(core := native.load(), config)
    if plan is not None:
        install(core, orders(plan, config.budget_chunks if core.ordered() else None), recording_of(plan))
        _planner.maker.plan = plan
        core.observe()
    if config.policy == "plan":  # which hears of each iteration anyway
        keep_journal()
    _planner.attach()
    for begins, _ in _wishes:
        begins()
    return _planner


def stop_planner() -> None:
    """Forget plans and recordings."""
    global _planner
    if _planner is not None:
        _planner.detach()
        _planner = None


def current() -> Planner:
    """The planner of the session; raises `NotEnabledError` without one."""
    if _planner is None:
        raise NotEnabledError
    return _planner


def step() -> None:
    """Mark the end of an iteration.

    Seldom needed: a step of a ``torch.optim`` optimizer marks one; where there is none, the end of a backward pass; and
    in loops that do neither (inference, generation, an evaluation) vtensor finds after some rounds what comes round.
    This says where, at once, if none of them is right, as where one iteration has several backward passes and no step.
    Once called, the others are not believed any more. Does nothing if vtensor is not enabled, so that it can stay in a
    script.
    """
    if (planner := _planner) is not None:
        planner.step()


def as_one_iteration(owner: Any) -> AbstractContextManager[None]:
    """What takes several optimizer steps, but is one iteration; it ends where this ends, unless by an exception.

    `owner` counts as the optimizer whose steps mark iterations.
    """
    return nullcontext() if _planner is None else _planner.as_one_iteration(owner)


def keep_journal() -> Journal:
    """What each iteration does is noted, from now on if it was not before."""
    planner = current()
    if planner.journal is None:
        planner.journal = Journal(planner.core)
        listen(planner.journal.note)
    return planner.journal


def listen(listener: Callable[[], None]) -> Callable[[], None]:
    """Call it at the end of each iteration, after its record is closed; what is returned ends that."""
    (listeners := current().listeners).append(listener)
    return lambda: listeners.remove(listener)


def of_each_session(begins: Callable[[], None], ends: Callable[[], None]) -> Callable[[], None]:
    """Call them as a session begins, also for the one that is there, and before one ends; what is returned stops it."""
    begins()
    _wishes.append(wish := (begins, ends))
    return lambda: _wishes.remove(wish)


def session_ends() -> None:
    """Whoever wishes looks at it while it is there."""
    for _, ends in _wishes:
        ends()


def newest_plan() -> lgm.Plan | None:
    """The plan made or read last; None without one."""
    return None if _planner is None else _planner.maker.plan


def why_no_plan() -> str:
    """The reason, if no iteration ever ended, or the newest analysis found none or is not done; else empty."""
    if (planner := _planner) is None:
        return ""
    if not planner.hears:
        return _UNMARKED
    return planner.maker.why_not or ("the first is still being made" if planner.maker.work.busy else "")


def wait_for_plan() -> None:
    """Wait until the analysis under way, if any, is done; its plan is followed from the next boundary on."""
    if (planner := _planner) is not None:
        planner.maker.work.wait()
