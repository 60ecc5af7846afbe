"""What a budget of its own left free stays free.

Where no budget is given, part of what is free is left for all that is not managed. Small tensors, workspaces of
libraries and the program's own data may outgrow that: then chunks make way, before the system has to swap or the driver
runs out.

Covers: looking when an iteration ends, and how much smaller the budget becomes.
Leaves: how much is free (``settings.available``), changing the budget (``lifecycle``).
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from ..devices.gpu import lent_bytes
from ..logs import log
from ..native.core import Core, Snapshot
from ..planning.current_planner import listen
from ..settings.available import free_memory
from ..settings.config import Config
from ..settings.sizes import format_bytes

__all__ = ["Reserve", "keep_free"]

_PAUSE = 1.0  # seconds between looks
_LEAST = 8  # the budget never gets smaller than such a part of what it was


def keep_free(core: Core, config: Config, change: Callable[[int], None]) -> None:
    """Look after each iteration from now on, if the budget is one of its own; `change` takes another one in bytes."""
    if config.reserve:
        listen(Reserve(core, config, change).look)


class Reserve:
    """Of one session."""

    def __init__(self, core: Core, config: Config, change: Callable[[int], None]) -> None:
        self._core, self._config, self._change = core, config, change
        self._budget = config.budget
        self._next = 0.0

    def look(self) -> None:
        """Lower the budget if less than a quarter of the reserve is left, so that half of it is."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _PAUSE
        shot = self._core.snapshot()
        chunk, reserve = self._config.chunk, self._config.reserve
        if shot["budget_chunks"] * chunk != self._budget:
            return  # whoever changed it knows what he wants
        spare = self._spare(shot)
        if spare >= reserve // 4:
            return
        lower = self._budget - -(-(reserve // 2 - spare) // chunk) * chunk
        lower = max(lower, self._config.budget // _LEAST // chunk * chunk, chunk)
        if lower >= self._budget:
            return
        left, wanted = format_bytes(max(spare, 0)), format_bytes(reserve)
        try:
            self._change(lower)
        except torch.OutOfMemoryError as error:
            log.warning(
                "%s of the %s kept free for unmanaged memory are left, and the budget cannot be lowered: %s",
                left,
                wanted,
                error,
            )
            return
        if self._core.snapshot()["budget_chunks"] * chunk != lower:
            return  # nobody may change it here (a forked child), and that was said
        log.warning(
            "%s of the %s kept free for unmanaged memory are left: the budget is now %s, it was %s",
            left, wanted, format_bytes(lower), format_bytes(self._budget),
        )  # fmt: skip
        self._budget = lower

    def _spare(self, shot: Snapshot) -> int:
        """Free bytes that are not promised to chunks, or taken by what waits for some in RAM."""
        config, chunk = self._config, self._config.chunk
        taken = max(shot["handles"]["chunks"] * chunk, lent_bytes())
        waiting = 0 if config.device == "cuda" or config.spill_dir else shot["slots_used"] * chunk
        return free_memory(config.device, config.ordinal) - max(self._budget - taken, 0) + waiting
