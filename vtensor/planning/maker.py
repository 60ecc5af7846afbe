"""Plans of recorded iterations, made beside the program and handed to the core.

Covers: the thread that waits for a plan (or for what ``policy="delta"`` brings in time), whether it still is for what
the session is by then, the words where there is none.
Leaves: of which iterations (``planner``), the analysis (``helper``, :mod:`lgm`), which plans (``stages``), how the
core takes them (``plans``) and follows them (``kernels/iteration/plan_runner.h``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

import lgm
from lgm.placing.orders import Orders, arrivals_alone
from lgm.timing.prefetch import prefetch

from ..logs import log
from ..native.core import Core, RawIteration
from ..settings.config import Config
from ..settings.sizes import format_bytes
from .background import Background
from .helper import Abandoned, abandon, begin, orders
from .plans import install, to_plan_for
from .recordings import Recording, make_recording
from .stages import plans

__all__ = ["PlanMaker"]


class PlanMaker:
    """One per enabled session. Plans are forgotten by one thread while another makes the next."""

    def __init__(self, core: Core, config: Config) -> None:
        self.core, self.config = core, config
        kinds: dict[str, Callable[[Recording, Any, lgm.Device], None]] = {"plan": self._plan, "delta": self._prefetch}
        self._make = kinds.get(config.policy)  # of an iteration that is worth it (kernels/iteration/sightings.h)
        self.work = Background("vtensor-planner")
        self._alone = False  # no thread could be started
        self.plan: lgm.Plan | None = None  # the newest
        self.why_not = ""  # why there is no plan, for people
        self._forgotten = self._forgotten_when_begun = 0  # how often plans were: now; before the analysis under way

    @property
    def makes(self) -> bool:
        """Whether the policy of the session makes anything of iterations."""
        return self._make is not None

    @property
    def is_free(self) -> bool:
        """Whether :meth:`make_of` may be called."""
        return self.makes and not self.work.busy

    def make_of(self, raw: RawIteration, device: lgm.Device) -> None:
        """Begin to make what is to be made of an iteration, as the core recorded it."""
        self._forgotten_when_begun = self._forgotten
        begin()
        task = partial(self._analyze, raw, device)
        try:
            self.work.start(task)
        except RuntimeError as error:
            if not self._alone:
                log.warning("%s: plans are made between two iterations, which takes longer", error)
            self._alone = True
            task()

    def forget(self) -> None:
        """New plans are made; who makes one may stop."""
        self._forgotten += 1
        if self.work.busy:
            abandon()
        self._have_none()

    def _have_none(self) -> None:
        self.plan, self.why_not = None, ""
        self.core.forget_plans()
        self.core.expect_shortfall(0)

    def _analyze(self, raw: RawIteration, device: lgm.Device) -> None:
        assert self._make is not None
        try:
            self._make(make_recording(raw, self.config.chunk), raw, device)
        except (lgm.InfeasibleError, Abandoned) as error:
            if self._is_outdated(device):
                return
            # Without copies, what does not fit is recomputed again and again.
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
        """The core is stopped before the planner: on a GPU it may refuse, and the session goes on."""
        try:
            self.core.ordered()
        except self.core.InvalidUse:
            return True
        return False

    def _prefetch(self, recording: Recording, raw: RawIteration, device: lgm.Device) -> None:
        arrivals = prefetch(recording.trace, raw["use_away"], device)
        found = arrivals_alone(arrivals, recording.trace.tensors)
        # Another of an iteration that follows it would bring nothing: there nothing was found away.
        if self._hand_over(device, partial(install, self.core, found, replace(recording, followed=True))):
            log.info("prefetching: %d operations found something away", len(np.unique(arrivals.op)))

    def _hand_over(self, device: lgm.Device, install: Callable[[], None]) -> bool:
        """False if it is of another budget by now, or of tensors that were somewhere else."""
        if self._is_outdated(device):
            return False
        install()
        if outdated := self._is_outdated(device):  # since a moment ago
            self._have_none()
        return not outdated

    def _is_outdated(self, device: lgm.Device) -> bool:
        return device.budget_chunks != self.config.budget_chunks or self._forgotten_when_begun != self._forgotten

    def _plan(self, recording: Recording, _raw: RawIteration, device: lgm.Device) -> None:
        less = to_plan_for(self.core, recording.trace, device, self.config.recompute)
        beside = self.core.snapshot()["borrowed_bytes"]["peak"] // self.config.chunk
        first, haste = self.plan is None, not recording.followed
        trace, recompute = recording.trace, self.config.recompute
        # There the budget holds, however long that takes.
        patient = self.config.oversize == "raise" or self.core.ordered()
        for plan in plans(trace, less, recompute, first=first, in_haste=haste, beside=beside, patient=patient):
            given = orders(plan, device.budget_chunks if self.core.ordered() else None)
            if not self._hand_over(device, partial(self._adopt, plan, given, recording, device)):
                return
            log.info(
                "planned: %d operations, %s out and %s in an iteration, %d chunks in reserve, "
                "%d tensors recomputed, step predicted %.3f s (computing %.3f s)",
                plan.trace.operations,
                format_bytes(plan.prediction.out_chunks * self.config.chunk),
                format_bytes(plan.prediction.in_chunks * self.config.chunk),
                plan.reservation,
                0 if plan.remaking is None else len(plan.remaking.make_op),
                plan.prediction.step_seconds,
                plan.trace.seconds,
            )

    def _adopt(self, plan: lgm.Plan, given: Orders, recording: Recording, device: lgm.Device) -> None:
        install(self.core, given, recording)
        self._expect_shortfall(plan, device)
        self.plan, self.why_not = plan, ""

    def _expect_shortfall(self, plan: lgm.Plan, device: lgm.Device) -> None:
        """Without copies a plan may be for more than there is (``stages``)."""
        held = plan.prediction.peak_chunks
        chunks = max(held - device.budget_chunks, 0)
        self.core.expect_shortfall(chunks)
        if chunks > 0 and self.plan is None:
            log.warning(
                "recompute='only': too little can be recomputed for a budget of %s, or it would take too long. Planned "
                "for %s; beyond that, whatever can be recomputed is dropped on demand, or host memory used in place, "
                "both slower. Raise the budget, or allow copies (recompute='auto')",
                format_bytes(device.budget_chunks * self.config.chunk),
                format_bytes(held * self.config.chunk),
            )
