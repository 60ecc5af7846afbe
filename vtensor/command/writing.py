"""Files that a command writes when its script has ended, and what is said of them.

Covers: that a run of hours does not end in an exception of its trace's. Leaves: what is written (``planning.traces``,
``reports``).
"""

from __future__ import annotations

from collections.abc import Callable

import lgm
from lgm.errors import LgmError

from ..logs import log, say

__all__ = ["size_of", "write_if_possible"]


def size_of(trace: lgm.Trace) -> str:
    """In words."""
    return f"{trace.operations} operations, {trace.tensors} tensors"


def write_if_possible(path: str, write: Callable[[str], str], who: str = "vtensor") -> None:
    """Say on stderr what was written, or why not. `write` returns what there is to say of the file at `path`."""
    try:
        say(f"{who}: wrote {path}: {write(path)}")
    except (RuntimeError, OSError, LgmError) as error:
        say(f"{who}: {path} was not written: {error}")
    except Exception as error:  # a defect of ours: what the run says otherwise, and its exit code, are not lost to it
        say(f"{who}: {path} was not written: {type(error).__name__}: {error}")
        log.debug("writing %s failed", path, exc_info=True)
