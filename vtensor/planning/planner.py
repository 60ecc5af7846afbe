"""Plans in a running program: when an iteration ends, when one is worth a plan, and the thread that waits for it.

Covers: finding iterations by optimizer steps, by :func:`vtensor.step`, or as the core does, what is analysed (for a
plan, or for what ``policy="delta"`` brings in time), telling those who listen.
Leaves: which planner is the session's (``current_planner``), whose steps end iterations (``marker``), recorded
iterations as files (``traces``), the analysis (``analysis``, :mod:`lgm`), of which device (``speeds``), plans for the
core (``plans``), following a plan (``kernels/iteration/plan_runner.h``).
"""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch.optim import optimizer as torch_optimizer

import lgm
from lgm.timing.prefetch import prefetch

from ..logs import log, ours_only
from ..settings.config import Config
from ..settings.sizes import format_bytes
from .analysis import Abandoned, abandon, prepare
from .background import Background
from .journal import Journal
from .marker import Marker, Rank
from .plans import install, install_arrivals, to_plan_for
from .recordings import Recording, make_recording
from .speeds import found_device
from .stages import plans

__all__ = ["Planner"]

_ELSEWHERE = "the thread that ended the last iteration does nothing in the next: is there a new one for each step?"


class Planner:
    """One per enabled session."""

    def __init__(self, core: ModuleType, config: Config) -> None:
        self.core, self.config = core, config
        kinds: dict[str, Callable[[Recording, Any, lgm.Device], None]] = {"plan": self._plan, "delta": self._prefetch}
        self._make = kinds.get(config.policy)  # of an iteration that is worth it (kernels/iteration/sightings.h)
        self._marked = False  # somebody calls step()
        self._inside = False  # of what is one iteration, whatever steps there are
        self._noting = False  # what the end of an iteration says
        self._marker = Marker()
        self.work = Background("vtensor-planner")
        self._alone = False  # no thread could be started
        self.wanted = False  # somebody wants a trace, whatever the policy
        self.journal: Journal | None = None
        self.listeners: list[Callable[[], None]] = []  # called when an iteration ended
        self.after_steps: list[Callable[[Any], None]] = []  # called with an optimizer after its step, before that
        self.shelves = 0  # allocations in which tensors lie side by side, so far
        self.plan: lgm.Plan | None = None  # the newest
        self.why_not = ""  # why there is no plan, for people
        self._forgotten = self._forgotten_when_begun = 0  # how often plans were: now; before the analysis under way
        self._process = os.getpid()
        self._figures: dict[str, Any] = {}  # of the core, at the last boundary

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
            self.work.stop()

    def record(self) -> None:
        """Somebody wants a trace, of a round, too."""
        self.wanted = True
        self._listen_to_rounds()

    def _listen_to_rounds(self) -> None:
        if self._make is not None or self.wanted:
            self.core.hear_of_rounds(self._round_ended, self.wanted)

    def _program_ends(self) -> None:
        self.core.hear_of_rounds(None)
        if os.getpid() == self._process:
            abandon()
            self.work.end()

    def _after_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if torch.compiler.is_compiling() or self._inside:  # compiled steps are not heard; backward passes are
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
        self._marked = True
        self.boundary()

    def boundary(self) -> None:
        """An iteration ends here and the next begins. Raises nothing of its own: it runs inside the program's step."""
        if self._make is None and not self.wanted and self.config.leaving == "copy" and not self.listeners:
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
        before, now = self._figures, self.core.snapshot() if self._make is not None else {}
        self._figures = now
        if self.config.policy == "plan" and self.plan is None and _left(now) and not _left(before):
            prepare(now["allocations"])
        if telling and self._make is not None and not self.work.busy:
            raw = self.core.recorded_iteration()
            if not len(raw["op_name"]):
                self.why_not = _ELSEWHERE
                return
            if not raw["took"]:  # on a GPU, where another round ended meanwhile, which was not timed
                return
            device = found_device(self.config, before, now, raw["stalls"] / 1e9)
            self._forgotten_when_begun = self._forgotten
            self._begin(lambda: self._analyze(raw, device))

    def _begin(self, task: Callable[[], None]) -> None:
        try:
            self.work.start(task)
        except RuntimeError as error:
            if not self._alone:
                log.warning("%s: plans are made between two iterations, which takes longer", error)
            self._alone = True
            task()

    def change_budget(self, config: Config) -> None:
        """Plans were made for another budget: new ones are made."""
        self.config = config
        self.forget_plans()

    def forget_plans(self) -> None:
        """New ones are made."""
        self._forgotten += 1
        self.plan, self.why_not = None, ""
        self.core.forget_plans()
        self.core.expect_shortfall(0)

    def _analyze(self, raw: dict[str, Any], device: lgm.Device) -> None:
        assert self._make is not None
        try:
            self._make(make_recording(raw, self.config.chunk), raw, device)
        except (lgm.InfeasibleError, Abandoned) as error:
            # Without copies, what does not fit is made again and again.
            slow = self.config.recompute == "only" and not self.why_not and not isinstance(error, Abandoned)
            self.why_not = str(error)
            log.log(logging.WARNING if slow else logging.INFO, "no plan%s: %s", ", steps will be slow" * slow, error)
        except Exception:  # a plan is advice: whatever goes wrong here, training goes on without it
            if self._session_ended():
                log.debug("no plan: the session ended while it was made")
                return
            self.why_not = "the analysis failed; the log (VTENSOR_LOG=info) says how"
            log.exception("no plan: the analysis failed")

    def _session_ended(self) -> bool:
        """The core is stopped before :meth:`detach`: on a GPU it may refuse, and the session goes on."""
        try:
            self.core.ordered()
        except self.core.InvalidUse:
            return True
        return False

    def _prefetch(self, recording: Recording, raw: dict[str, Any], device: lgm.Device) -> None:
        arrivals = prefetch(recording.trace, raw["use_away"], device)
        if self._hand_over(device, partial(install_arrivals, self.core, arrivals, recording)):
            log.info("prefetching: %d operations found something away", len(np.unique(arrivals.op)))

    def _hand_over(self, device: lgm.Device, install: Callable[[], None]) -> bool:
        """False if it is of another budget by now, or of tensors that were somewhere else."""
        if self._is_outdated(device):
            return False
        install()
        if outdated := self._is_outdated(device):  # since a moment ago
            self.core.forget_plans()
        return not outdated

    def _is_outdated(self, device: lgm.Device) -> bool:
        return device.budget_chunks != self.config.budget_chunks or self._forgotten_when_begun != self._forgotten

    def _plan(self, recording: Recording, _raw: dict[str, Any], device: lgm.Device) -> None:
        less = to_plan_for(self.core, recording.trace, device, self.config.recompute)
        beside = self.core.snapshot()["borrowed_bytes"]["peak"] // self.config.chunk
        haste = not recording.followed
        for plan in plans(recording.trace, less, self.config.recompute, in_haste=haste, beside=beside):
            if not self._hand_over(device, partial(install, self.core, plan, recording, device.budget_chunks)):
                return
            self._expect_shortfall(plan, device)
            self.plan, self.why_not = plan, ""
            log.info(
                "planned: %d operations, %s out and %s in an iteration, %d chunks in reserve, "
                "%d tensors made again, step predicted %.3f s (computing %.3f s)",
                plan.trace.operations,
                format_bytes(plan.prediction.out_chunks * self.config.chunk),
                format_bytes(plan.prediction.in_chunks * self.config.chunk),
                plan.reservation,
                0 if plan.remaking is None else len(plan.remaking.make_op),
                plan.prediction.step_seconds,
                plan.trace.seconds,
            )

    def _expect_shortfall(self, plan: lgm.Plan, device: lgm.Device) -> None:
        """Without copies a plan may be for more than there is (``stages``)."""
        held = plan.prediction.peak_chunks
        chunks = max(held - device.budget_chunks, 0)
        self.core.expect_shortfall(chunks)
        if chunks > 0 and self.plan is None:
            log.warning(
                "recompute='only': too little can be made again for a budget of %s. Planned for %s; for the rest "
                "whatever can be made again is dropped as it comes, or host memory used in place, both slower. Raise "
                "the budget, or allow copies (recompute='auto')",
                format_bytes(device.budget_chunks * self.config.chunk),
                format_bytes(held * self.config.chunk),
            )


def _left(shot: dict[str, Any]) -> int:
    """VTensors that ever left, by a snapshot of the core."""
    return int(shot.get("evictions", 0) + shot.get("drops", 0))
