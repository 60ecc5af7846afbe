"""Plans in a running program: when an iteration ends, when one is worth a plan, and the thread that waits for it.

Covers: finding iterations by optimizer steps or by :func:`step`, what is analysed (for a plan, or for what
``policy="delta"`` brings in time).
Leaves: recorded iterations as files (``traces``), the analysis (``analysis``, :mod:`lgm`), of which device
(``speeds``), plans for the core and from files (``plans``), following a plan (``kernels/iteration/plan_runner.h``),
turning vtensor on (``session``).
"""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch.optim import optimizer as torch_optimizer

import lgm
from lgm.timing.prefetch import prefetch

from .. import native
from ..errors import NotEnabledError
from ..logs import log, ours_only
from ..settings.config import Config, format_bytes
from .analysis import Abandoned, abandon, begin, plans, prepare
from .background import Background
from .journal import Journal
from .marker import Marker, Rank
from .plans import install, install_arrivals, recording_of, to_plan_for
from .recordings import Recording, make_recording
from .speeds import found_device

__all__ = [
    "Planner",
    "as_one_iteration",
    "current",
    "keep_journal",
    "listen",
    "newest_plan",
    "start_planner",
    "step",
    "stop_planner",
    "wait_for_plan",
    "why_no_plan",
]

_planner: Planner | None = None
_UNMARKED = "no step of an optimizer of torch.optim, and few backward passes: where do iterations end? (vtensor.step())"
_ELSEWHERE = "the thread that ended the last iteration does nothing in the next: is there a new one for each step?"


class Planner:
    """One per enabled session."""

    def __init__(self, module: ModuleType, config: Config) -> None:
        self.module, self.config = module, config
        kinds: dict[str, Callable[[Recording, Any, lgm.Device], None]] = {"plan": self._plan, "delta": self._prefetch}
        self._make = kinds.get(config.policy)  # of an iteration that is worth it (kernels/iteration/sightings.h)
        self._marked = False  # somebody calls step()
        self._inside = False  # of what is one iteration, whatever steps there are
        self._marker = Marker()
        self.work = Background("vtensor-planner")
        self.wanted = False  # somebody wants a trace, whatever the policy
        self.journal: Journal | None = None
        self.listeners: list[Callable[[], None]] = []  # called when an iteration ended
        self.after_steps: list[Callable[[Any], None]] = []  # called with an optimizer after its step, before that
        self.shelves = 0  # allocations in which tensors lie side by side, so far
        self.plan: lgm.Plan | None = None  # the newest
        self.why_not = ""  # why there is no plan, for people
        self._forgotten = self._since = 0  # how often plans were, now and when the analysis under way began
        self._process = os.getpid()
        self._before: dict[str, Any] = {}
        self._now: dict[str, Any] = {}

    def attach(self) -> None:
        """Take the end of an optimizer's step for the end of an iteration."""
        torch_optimizer.register_optimizer_step_post_hook(self._after_step)
        atexit.register(self._program_ends)

    def detach(self) -> None:
        """Undo :meth:`attach`, also in part, and wait for the analysis under way. May be repeated."""
        atexit.unregister(self._program_ends)
        # Not by the handle: an exception may come before it is kept.
        hooks = torch_optimizer._global_optimizer_post_hooks
        for key, hook in list(hooks.items()):
            if hook == self._after_step:
                hooks.pop(key, None)
        if os.getpid() == self._process:  # else the thread and the process that makes plans are those of a parent
            abandon()
            self.work.stop()

    def _program_ends(self) -> None:
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
    def one(self, owner: Any) -> Iterator[None]:
        self._inside = True
        try:
            yield
        finally:
            self._inside = False
        self._iteration_ends(owner, Rank.WHOLE)

    @property
    def hears(self) -> bool:
        return self._marked or self._marker.hears

    def step(self) -> None:
        self._marked = True
        self.boundary()

    def boundary(self) -> None:
        """An iteration ends here and the next begins. Raises nothing of its own: it runs inside the program's step."""
        if self._make is None and not self.wanted and self.config.leaving == "copy":
            return
        with ours_only("an iteration went unnoticed"):  # another thread may have ended the session meanwhile
            self._boundary()

    def _boundary(self) -> None:
        telling = self.module.boundary(self.wanted)
        for listener in self.listeners:
            listener()
        self._before, self._now = self._now, self.module.snapshot() if self._make is not None else {}
        if self.config.policy == "plan" and self.plan is None and _left(self._now) and not _left(self._before):
            prepare(self._now["allocations"])
        if telling and self._make is not None and not self.work.busy:
            raw = self.module.recorded_iteration()
            if not len(raw["op_name"]):
                self.why_not = _ELSEWHERE
                return
            device = found_device(self.config, self._before, self._now, raw["stalls"] / 1e9)
            self._since = self._forgotten
            self.work.start(lambda: self._analyze(raw, device))

    def change_budget(self, config: Config) -> None:
        """Plans were made for another budget: new ones are made."""
        self.config = config
        self.forget_plans()

    def forget_plans(self) -> None:
        """New ones are made."""
        self._forgotten += 1
        self.plan, self.why_not = None, ""
        self.module.forget_plans()

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
            self.why_not = "the analysis failed; the log (VTENSOR_LOG=info) says how"
            log.exception("no plan: the analysis failed")

    def _prefetch(self, recording: Recording, raw: dict[str, Any], device: lgm.Device) -> None:
        arrivals = prefetch(recording.trace, raw["use_away"], device)
        if device.budget_chunks != self.config.budget_chunks:
            return  # it changed meanwhile
        install_arrivals(self.module, arrivals, recording)
        log.info("prefetching: %d operations found something away", len(np.unique(arrivals.op)))

    def _plan(self, recording: Recording, _raw: dict[str, Any], device: lgm.Device) -> None:
        less = to_plan_for(self.module, recording.trace, device, self.config.recompute)
        for plan in plans(recording.trace, less, self.config.recompute):
            if device.budget_chunks != self.config.budget_chunks or self._since != self._forgotten:
                return  # it is of another budget, or of tensors that were somewhere else
            install(self.module, plan, recording, device.budget_chunks)
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


def _left(shot: dict[str, Any]) -> int:
    """VTensors that ever left, by a snapshot of the core."""
    return int(shot.get("evictions", 0) + shot.get("drops", 0))


def start_planner(config: Config, plan: lgm.Plan | None) -> Planner:
    """Begin to look for iterations. `plan` comes from a file, and is followed from the first boundary on."""
    global _planner
    begin()
    _planner = Planner(module := native.load(), config)
    if plan is not None:
        install(module, plan, recording_of(plan), config.budget_chunks)
        _planner.plan = plan
        module.observe()
    _planner.attach()
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
    """Mark the end of a training iteration.

    Only needed where neither a ``torch.optim`` optimizer marks it by its step nor, where there is none, a backward pass
    by its end: inference loops, several passes in one iteration. Once called, these are not taken for iterations any
    more. Does nothing if vtensor is not enabled, so that it can stay in a script.
    """
    if (planner := _planner) is not None:
        planner.step()


def as_one_iteration(owner: Any) -> AbstractContextManager[None]:
    """What takes several optimizer steps, but is one iteration; it ends where this ends, unless by an exception.

    `owner` counts as the optimizer whose steps mark iterations.
    """
    return nullcontext() if _planner is None else _planner.one(owner)


def keep_journal() -> Journal:
    """Note what each iteration does from now on."""
    planner = current()
    if planner.journal is None:
        planner.journal = Journal(planner.module)
        planner.listeners.append(planner.journal.note)
    return planner.journal


def listen(listener: Callable[[], None]) -> Callable[[], None]:
    """Call it at the end of each iteration, after its record is closed; what is returned ends that."""
    (listeners := current().listeners).append(listener)
    return lambda: listeners.remove(listener)


def newest_plan() -> lgm.Plan | None:
    """The plan made or read last; None without one."""
    return None if _planner is None else _planner.plan


def why_no_plan() -> str:
    """The reason, if no iteration ever ended, or the newest analysis found none or is not done; else empty."""
    if (planner := _planner) is None:
        return ""
    if not planner.hears:
        return _UNMARKED
    return planner.why_not or ("the first is still being made" if planner.work.busy else "")


def wait_for_plan() -> None:
    """Wait until the analysis under way, if any, is done; its plan is followed from the next boundary on."""
    if (planner := _planner) is not None:
        planner.work.wait()
