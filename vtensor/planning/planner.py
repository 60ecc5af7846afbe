"""Iterations of a running program: when one ends, who is told, and when one is worth a plan.

Covers: hearing of them by optimizer steps, by :func:`vtensor.step`, or as the core finds them.
Leaves: which planner is the session's (``current_planner``), whose steps end iterations (``marker``), making plans of
them (``maker``), recorded iterations as files (``traces``), of which device (``speeds``).
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer

from ..logs import ours_only
from ..native.core import Core, Snapshot
from ..settings.config import Config
from .helper import abandon, prepare
from .journal import Journal
from .maker import PlanMaker
from .marker import Marker, Rank
from .speeds import found_device

__all__ = ["Planner"]

_ELSEWHERE = "the thread that ended the last iteration does nothing in the next: is there a new one for each step?"


class Planner:
    """One per enabled session."""

    def __init__(self, core: Core, config: Config) -> None:
        self.core, self.maker = core, PlanMaker(core, config)
        self._marked = False  # somebody calls step()
        self._inside = False  # of what is one iteration, whatever steps there are
        self._noting = False  # what the end of an iteration says
        self._marker = Marker()
        self.wanted = False  # somebody wants a trace, whatever the policy
        self.journal: Journal | None = None
        self.listeners: list[Callable[[], None]] = []  # called when an iteration ended
        self.after_steps: list[Callable[[Any], None]] = []  # called with an optimizer after its step, before that
        self.shelves = 0  # allocations in which tensors lie side by side, so far
        self._process = os.getpid()
        self._figures: Snapshot | None = None  # of the core, at the last boundary

    @property
    def config(self) -> Config:
        """Of the session."""
        return self.maker.config

    def attach(self) -> None:
        """Take the end of an optimizer's step for the end of an iteration, and hear of those that the core finds."""
        torch_optimizer.register_optimizer_step_post_hook(self._after_step)
        self._listen_to_rounds()
        atexit.register(self._program_ends)

    def detach(self) -> None:
        """Undo :meth:`attach`, also in part, and wait for the analysis under way. May be repeated."""
        atexit.unregister(self._program_ends)
        self.core.hear_of_rounds(None)
        # Not by the handle: an exception may come before it is kept.
        hooks = torch_optimizer._global_optimizer_post_hooks
        for key, hook in list(hooks.items()):
            if hook == self._after_step:
                hooks.pop(key, None)
        if os.getpid() == self._process:  # else the thread and the process that makes plans are those of a parent
            abandon()
            self.maker.work.stop()

    def record(self) -> None:
        """Somebody wants a trace, of a round, too."""
        self.wanted = True
        self._listen_to_rounds()

    def _listen_to_rounds(self) -> None:
        if (self.maker.makes or self.wanted) and not self._marked:
            self.core.hear_of_rounds(self._round_ended, self.wanted)

    def _program_ends(self) -> None:
        self.core.hear_of_rounds(None)
        if os.getpid() == self._process:
            abandon()
            self.maker.work.end()

    def _after_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if torch.compiler.is_compiling():  # what is compiled is not heard any more; backward passes are
            self._marker.steps_are_compiled()
            return
        if self._inside:
            return
        for listener in self.after_steps:
            with ours_only("something after an optimizer's step was left out"):
                listener(optimizer)
        if torch._C._current_graph_task_id() == -1:
            self._iteration_ends(optimizer)
        else:
            self._marker.steps_within_a_pass()

    def pass_ends(self, thread: Any, accumulated: bool) -> None:
        """A backward pass of the program came to its end, in this thread."""
        rank = self._marker.rank_of_pass(accumulated)
        if not self._inside:
            self._iteration_ends(thread, rank)

    def _iteration_ends(self, who: Any, rank: Rank = Rank.STEP) -> None:
        if not self._marked and self._marker.ends(who, rank):
            self.boundary()

    @contextmanager
    def as_one_iteration(self, owner: Any) -> Iterator[None]:
        self._inside = True
        try:
            yield
        finally:
            self._inside = False
        self._iteration_ends(owner, Rank.WHOLE)

    @property
    def hears(self) -> bool:
        return self._marked or self._marker.hears or bool(self.core.plan_counters()["iterations"])

    def step(self) -> None:
        if not self._marked:
            self._marked = True
            self.core.hear_of_rounds(None)  # nor are those believed
        self.boundary()

    def boundary(self) -> None:
        """An iteration ends here and the next begins. Raises nothing of its own: it runs inside the program's step."""
        if not self.maker.makes and not self.wanted and self.config.leaving == "copy" and not self.listeners:
            return
        with ours_only("an iteration went unnoticed"):  # another thread may have ended the session meanwhile
            self._boundary()

    def _boundary(self) -> None:
        with self._alone_noting():
            self._note(self.core.boundary(self.wanted))

    @contextmanager
    def _alone_noting(self) -> Iterator[None]:
        """Rounds, of which the core tells between any two lines, are not noted meanwhile."""
        self._noting = True
        try:
            yield
        finally:
            self._noting = False

    def _round_ended(self, telling: bool) -> None:
        """Hear from the core that iterations ended of which nobody told (kernels/iteration/rounds.h)."""
        if self._noting or self._inside or torch.compiler.is_compiling():
            return
        with ours_only("a round went unnoticed"), self._alone_noting():
            self._note(telling)

    def _note(self, telling: bool) -> None:
        """Of several that ended since, the newest is looked at."""
        for listener in list(self.listeners):  # one may end its listening
            with ours_only("something at the end of an iteration was left out"):
                listener()
        if not self.maker.makes:
            return
        before, now = self._figures, self.core.snapshot()
        self._figures = now
        if self.config.policy == "plan" and self.maker.plan is None and _left(now) and not _left(before):
            prepare(now["allocations"] - (before["allocations"] if before is not None else 0))
        if telling and self.maker.is_free:
            raw = self.core.recorded_iteration()
            if not len(raw["op_name"]):
                self.maker.why_not = _ELSEWHERE
                return
            if not raw["took"]:  # on a GPU, where another round ended meanwhile, which was not timed
                return
            self.maker.make_of(raw, found_device(self.config, before or {}, now, raw["stalls"] / 1e9))

    def change_budget(self, config: Config) -> None:
        """Plans were made for another budget: new ones are made."""
        self.maker.config = config
        self.maker.forget()


def _left(shot: Snapshot | None) -> int:
    """VTensors that ever left, by a snapshot of the core."""
    return shot["evictions"] + shot["drops"] if shot is not None else 0
