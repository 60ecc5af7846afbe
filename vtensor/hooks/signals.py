"""Our handler of SIGSEGV stays above Python's and the program's own.

Covers: putting it back on top after ``faulthandler.enable()`` and ``signal.signal()``.
Leaves: the handler (``kernels/process/fault_handler.h``), taking this away again (``patches``).
"""

from __future__ import annotations

import faulthandler
import functools
import signal
from collections.abc import Callable
from typing import Any

from ..native.core import Core
from .patches import replace

__all__ = ["keep_handler_on_top"]


def keep_handler_on_top(core: Core) -> None:
    """Put it back whenever another is set, until :func:`vtensor.hooks.patches.restore`."""
    if faulthandler.is_enabled():
        core.note_pythons_handler()
    for name in ("enable", "disable"):
        replace(faulthandler, name, _keeping_ours_on_top(getattr(faulthandler, name), core))
    replace(signal, "signal", _keeping_ours_on_top(signal.signal, core))


def _keeping_ours_on_top(change: Callable[..., Any], core: Core) -> Callable[..., Any]:
    @functools.wraps(change)
    def change_and_arm(*args: Any, **kwargs: Any) -> Any:
        try:
            return change(*args, **kwargs)
        finally:  # else it would print a crash each time an absent vTensor is touched, or that would be tried for ever
            if change.__name__ == "enable":
                core.note_pythons_handler()
            core.arm_fault_handler()

    return change_and_arm
