"""Copies, and what is recomputed, as tracks of ``torch.profiler``'s trace.

Covers: keeping the core's log while a profile is taken, and adding it to the file that torch wrote.
Leaves: the log (``kernels/base/spans.h``), torch's profile. On a GPU copies are in that anyway, on streams of their
own.

The core's clock and the profile's differ. So marks are made, that the profile shows and whose times are known here.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from ..errors import ConfigError
from ..native.core import Core
from ..planning.current_planner import listen
from ..session.lifecycle import active_core, is_kept_off
from ..settings.sizes import format_bytes

__all__ = ["Tracks", "tracks"]

_MARK = "vtensor: iteration "
_alone = threading.Lock()
_numbers = itertools.count()  # of all in this process: several may be in one profile
_TRACKS = {"copy out": "copies out", "copy in": "copies in", "recompute": "recomputed"}


class Tracks:
    """What happened while :func:`vtensor.tracks` was open."""

    def __init__(self) -> None:
        self._marks: dict[str, int] = {}
        self.spans: list[tuple[str, int, int, int]] = []
        """What was done, when by the core's clock it began and ended, and its bytes; once the block has ended."""

    def mark(self) -> None:
        """Make an event whose time is known by both clocks."""
        name = f"{_MARK}{next(_numbers)}"
        with torch.profiler.record_function(name):
            self._marks[name] = time.monotonic_ns()

    def take(self, core: Core) -> None:
        """The log ends, and is here from now on."""
        self.spans = core.take_spans()

    def add_to(self, path: str | os.PathLike[str]) -> int:
        """Add the tracks to a file that ``profile.export_chrome_trace(path)`` wrote (``.json`` or ``.json.gz``).

        Returns
        -------
        int
            How many copies and makings of the profiled time were added.

        Raises
        ------
        ConfigError
            If the file is no such trace, or of another time.
        """
        file = Path(path)
        open_file: Callable[..., Any] = gzip.open if file.suffix == ".gz" else open
        try:
            with open_file(file, "rt", encoding="utf-8") as source:
                trace = json.load(source)
            events = trace["traceEvents"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{file} is not a trace of torch.profiler ({error}); call profile.export_chrome_trace() first"
            ) from None
        marks = {each["name"]: each for each in events if each.get("name") in self._marks and each.get("ph") == "X"}
        if not marks:
            raise ConfigError(
                f"{file} is of another time: nothing in it happened within vtensor.tracks(); open both around the same "
                "steps"
            )
        known = min(marks)
        offset = marks[known]["ts"] - self._marks[known] / 1e3  # microseconds
        shown = [each for each in events if each.get("ph") == "X"]
        first = min(each["ts"] for each in shown)
        last = max(each["ts"] + each.get("dur", 0) for each in shown)
        added = []
        for what, begun, ended, size in self.spans:
            at = begun / 1e3 + offset
            if first <= at <= last:
                name = f"{what}, {format_bytes(size)}" if size else what
                added.append({
                    "ph": "X", "cat": "vtensor", "name": name, "pid": "vtensor", "tid": _TRACKS[what], "ts": at,
                    "dur": (ended - begun) / 1e3, "args": {"bytes": size},
                })  # fmt: skip
        names = {"ph": "M", "name": "process_labels", "pid": "vtensor", "tid": 0, "args": {"labels": "memory"}}
        trace["traceEvents"] = [*events, names, *added]
        half = file.with_name(file.name + ".half")
        with open_file(half, "wt", encoding="utf-8") as target:
            json.dump(trace, target)
        half.replace(file)
        return len(added)


@contextlib.contextmanager
def tracks() -> Iterator[Tracks]:
    """Keep a log of copies and of what is recomputed, for a profile of the same steps.

    While ``VTENSOR_DISABLE=1`` keeps vtensor off nothing is in it.

    Raises
    ------
    NotEnabledError
        If vtensor is not enabled.
    ConfigError
        If somebody else keeps such a log: there is one.

    Examples
    --------
    >>> import torch, vtensor
    >>> vtensor.enable("1GiB")
    >>> with torch.profiler.profile() as profile, vtensor.tracks() as tracks:
    ...     torch.ones(1 << 20).sum()
    tensor(1048576.)
    >>> profile.export_chrome_trace("profile.json")
    >>> tracks.add_to("profile.json")  # for chrome://tracing, ui.perfetto.dev and TensorBoard
    0
    >>> vtensor.disable()
    """
    if is_kept_off():
        nothing = Tracks()
        nothing.mark()
        yield nothing
        return
    core = active_core()
    if not _alone.acquire(blocking=False):
        raise ConfigError("another 'with vtensor.tracks()' is open, and there is one log; leave that first")
    with contextlib.ExitStack() as undone:
        undone.callback(_alone.release)
        kept = Tracks()
        undone.callback(kept.take, core)
        core.keep_spans()
        undone.callback(kept.mark)
        undone.callback(listen(kept.mark))
        kept.mark()
        yield kept
