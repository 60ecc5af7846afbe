"""What is said and written of a run of ``vtensor run``, when its script ends its session, and when it ends itself.

Covers: a trace, a page, a summary; what a session must note for them from its beginning.
Leaves: running the script, and how the process ends (``launcher``), the figures (``reports``).
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from ..logs import say
from ..planning.current_planner import keep_journal
from ..planning.traces import record, save_trace
from ..reports.page import report
from ..reports.stats import memory_stats, memory_summary
from ..session.lifecycle import active_config, is_enabled
from ..settings.sizes import format_bytes
from .writing import size_of, write_if_possible

__all__ = ["Farewell", "Wishes", "begin_with", "flush"]


class Wishes(NamedTuple):
    """What to write when the script has ended."""

    trace: str | None = None
    """Its last iteration, for ``lgm``."""
    report: str | None = None
    """A page about the run."""
    watch: bool = False
    """To see each iteration."""
    tell: Callable[[], None] | None = None
    """Called instead of all that is said otherwise."""


def _uses_gpu() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _read_by_torch() -> dict[str, str | None]:
    """What torch looks at when it is imported, or, if there is a GPU, begins to use that."""
    names = ["OMP_NUM_THREADS", "MKL_NUM_THREADS", *(["CUDA_VISIBLE_DEVICES"] if _uses_gpu() else [])]
    return {name: os.environ.get(name) for name in names}


def begin_with(wishes: Wishes) -> None:
    """What a session must do from its beginning, for what is said in the end."""
    if wishes.trace is not None or wishes.report is not None:
        record()
    if wishes.report is not None or wishes.watch:
        journal = keep_journal()
        if wishes.watch:
            journal.watch()


def flush() -> None:
    """What the script printed comes before what is said of it; it may have closed where it printed."""
    with contextlib.suppress(OSError, ValueError):
        if sys.stdout is not None:
            sys.stdout.flush()


class Farewell:
    """What is said and written of a run: when the script ends its session, and when it ends itself.

    Then the session stays, as in a program that began one: a GPU may have no room for what would come back.
    """

    def __init__(self, wishes: Wishes) -> None:
        self._wishes, self._said = wishes, False
        self._read = _read_by_torch()

    def session_ends(self) -> None:
        """By the script; of one that managed nothing, as a script begins its own instead, nothing is said."""
        if memory_stats()["allocations"] > 0:
            self._say(code=1)

    def program_ends(self, code: int) -> None:
        """With this exit code."""
        if late := [name for name, value in self._read.items() if value != os.environ.get(name)]:
            say(
                f"vtensor: the script set {', '.join(late)} too late: 'vtensor run' imports torch first. Set it before "
                "the command, to get the same number of threads as without vtensor (which can change the last bits), "
                "or the same GPU"
            )
        if is_enabled():
            self._say(code)
        elif not self._said:
            files = [path for path in (self._wishes.trace, self._wishes.report) if path is not None]
            unwritten = "".join(f", and {path} was not written" for path in files)
            say(f"vtensor: the script turned vtensor off before it ended: no summary{unwritten}")

    def _say(self, code: int) -> None:
        wishes = self._wishes
        flush()
        if wishes.trace is not None:
            write_if_possible(wishes.trace, lambda path: size_of(save_trace(path)))
        if wishes.report is not None:
            write_if_possible(wishes.report, _write_report)
        if wishes.tell is not None:
            wishes.tell()
        else:
            _sum_up(code)
        self._said = True


def _write_report(path: str) -> str:
    report(path, Path(sys.argv[0]).name)
    return "open it in a browser"


def _sum_up(code: int) -> None:
    managed = memory_stats()["allocations"] > 0
    if managed or code == 0:  # a usage error of the script needs no table behind it
        say(memory_summary())
    if not managed and code == 0:
        where = "GPU; for tensors of the CPU pass --device cpu" if active_config().device == "cuda" else "CPU"
        say(
            f"vtensor: nothing was managed: this process made no tensor of {format_bytes(active_config().min_size)} or "
            f"more on the {where}. Processes that a script starts have no session until they call vtensor.enable() "
            "(spawned ones, not forked); or start each with 'vtensor run' (torchrun ... -m vtensor run "
            "--budget 4GiB train.py)"
        )
