"""``vtensor fit``: some iterations of a script, to say what it would take in less memory.

Covers: iterations without a budget until their times agree, some under half of the peak, which measure copies here;
then the script is stopped, and the answer given.
Leaves: where iterations end (``planning``), running the script (``launcher``), the answer's figures (:mod:`lgm`).
"""

from __future__ import annotations

import dataclasses
import os
import statistics

import numpy as np
import torch

import lgm
from lgm.errors import LgmError
from lgm.fitting import GPUS, Numbers
from lgm.fitting.fits import by_budget, by_size
from lgm.iteration import analyze_lifetimes
from lgm.progress import Bar
from lgm.records import ASSUMED_LINK
from lgm.records.units import format_seconds

from ..errors import VtensorError
from ..logs import answer, say
from ..native.core import Core, RawIteration, Snapshot
from ..planning.speeds import found_device
from ..planning.traces import speed_here, trace_of
from ..session import lifecycle
from ..settings.sizes import format_bytes
from .writing import size_of, write_if_possible

__all__ = ["Measuring"]

_AGREE = 0.03  # of an iteration's times, no more between the three in the middle
_ALL_AGREE = 1.25  # of all but a quarter at either end, the longest to the shortest at most
_ALIKE = 5  # iterations of one kind, at least
_MOST = 20  # iterations until it is said that times do not agree
_COPYING = 7  # iterations under half of the peak
_TOUCHING = 2  # the first of them: they touch memory of the host that was never touched
_PATIENCE = 3  # times that a script may catch what ends it


class _Enough(SystemExit):
    """Ends the script; whoever cleans up behind a ``sys.exit()`` does."""


class Measuring:
    """Learns from each iteration; tells in the end.

    Parameters
    ----------
    core
        The core, with a session without a budget.
    gpu, numbers
        A device to be answered for too, by the names of ``lgm fit --gpu`` and ``--numbers``; None: this one only.
    path
        Where the iteration is written that is answered for; None: nowhere.
    """

    def __init__(self, core: Core, gpu: str | None = None, numbers: Numbers = "fp32", path: str | None = None) -> None:
        self._core, self._gpu, self._numbers, self._path = core, gpu, numbers, path
        self._times: dict[tuple[int, int], list[float]] = {}  # of each kind: operations, and bytes they allocate
        self._newest: dict[tuple[int, int], RawIteration] = {}
        self._iterations = 0
        self._kind: tuple[int, int] | None = None  # once recorded: the one that is answered for
        self._trace: lgm.Trace | None = None
        self._shot: Snapshot | None = None
        self._device: lgm.Device | None = None
        self._copying = 0
        self._pressed: list[float] = []  # times of those of this kind
        self._asked_to_end = 0
        self._why = ""  # copies could not be measured

    def note(self) -> None:
        """An iteration ended."""
        if self._asked_to_end:
            self._end()
        elif self._trace is None:
            self._record()
        else:
            self._copy()

    def _record(self) -> None:
        raw = self._core.recorded_iteration()
        if not raw["took"]:
            return
        self._iterations += 1
        kind = _kind(raw)
        self._times.setdefault(kind, []).append(raw["took"] / 1e9)
        self._newest[kind] = raw
        if self._agrees(kind) or self._iterations >= _MOST:
            self._measure(kind if self._agrees(kind) else self._largest())

    def _agrees(self, kind: tuple[int, int]) -> bool:
        times = sorted(self._times[kind])
        middle = (len(times) - 1) // 2
        return len(times) >= _ALIKE and times[middle + 1] <= (1 + _AGREE) * times[middle - 1]

    def _largest(self) -> tuple[int, int]:
        often = max(len(times) for times in self._times.values())
        return max((kind for kind, times in self._times.items() if 2 * len(times) > often), key=lambda kind: kind[1])

    def _measure(self, kind: tuple[int, int]) -> None:
        """Now under half of the peak, to see how fast this machine copies."""
        config = lifecycle.active_config()
        life = analyze_lifetimes(self._answer_for(kind))
        chunks = max(life.peak // 2, int(life.needed.max()), 2)
        try:
            lifecycle.resize(chunks * config.chunk)
        except (VtensorError, torch.OutOfMemoryError) as error:
            self._why = f"; a budget of half of the peak cannot be held here: {error}"
            self._end()

    def _copy(self) -> None:
        shot, raw = self._core.snapshot(), self._core.recorded_iteration()
        self._copying += 1
        if self._shot is not None:
            self._device = found_device(lifecycle.active_config(), self._shot, shot, raw["stalls"] / 1e9)
        if self._copying > _TOUCHING and raw["took"] and _kind(raw) == self._kind:
            self._pressed.append(raw["took"] / 1e9)
        self._shot = shot
        if self._copying >= _COPYING:
            self._end()

    def _end(self) -> None:
        """The script, by an exception; one that catches that, and trains on, all at once."""
        self._asked_to_end += 1
        if self._asked_to_end <= _PATIENCE:
            raise _Enough(0)
        self.tell()
        _say("the script caught SystemExit, so it was terminated")
        os._exit(0)

    def tell(self) -> None:
        """The answer, on stdout; on stderr how it was come by, and what of it is doubtful."""
        if self._trace is None and self._times:
            self._answer_for(self._largest())
        if self._trace is None or self._kind is None:
            _say(
                "no whole iteration with tensors that would be managed was seen, so there is no answer"
                f"{f', and {self._path} was not written' if self._path else ''}. Managed are tensors of "
                f"{format_bytes(lifecycle.active_config().min_size)} or more (less: --chunk and --min-size). An "
                "iteration ends with an optimizer's step or vtensor.step() (call that where nothing is trained), and "
                "the first is not taken: let it run longer"
            )
            return
        self._say_how()
        device = self._device or found_device(lifecycle.active_config(), {}, self._core.snapshot())
        beside = self._core.unmanaged()["peak"]
        try:
            pressed = _paced(self._trace, self._pressed) if self._pressed else None
            if pressed is not None and pressed.seconds < self._trace.seconds:
                pressed = None  # what is asked of it costs less than times differ here
            answer(by_budget(self._trace, device, beside, pressed, Bar()))
            if self._gpu is not None:
                answer("\n" + by_size(self._trace, GPUS[self._gpu], self._numbers, Bar()))
        except LgmError as error:
            _say(str(error))
        if self._path is not None:
            write_if_possible(self._path, self._write, "vtensor fit")

    def _write(self, path: str) -> str:
        assert self._trace is not None
        lgm.save_trace(self._trace, path)
        return size_of(self._trace)

    def _answer_for(self, kind: tuple[int, int]) -> lgm.Trace:
        """From now on."""
        self._kind, self._trace = kind, _paced(trace_of(self._newest[kind], **speed_here()), self._times[kind])
        return self._trace

    @property
    def answered(self) -> bool:
        """Whether there was something to tell."""
        return self._trace is not None

    def _say_how(self) -> None:
        assert self._trace is not None and self._kind is not None
        times = self._times[self._kind]
        least, most = format_seconds(min(times)), format_seconds(max(times))
        seconds = least if least == most else f"{least} to {most}"
        were = "iteration was" if self._iterations == 1 else "iterations were"
        _say(f"{self._iterations} {were} recorded; {len(times)} like the one below, which took {seconds}")
        if len(times) < _ALIKE:
            _say("too few to know whether their times agree, so take those below as a hint: let the script run longer")
        elif not self._agrees(self._kind) or _differ(times) or _differ(self._pressed):
            _say("their times do not agree, so take those below as a hint: is something else running here?")
        if len(self._times) > 1:
            _say(f"iterations are of {len(self._times)} kinds or sizes; this is the largest of those that came often")
        speeds = (ASSUMED_LINK,) * 2 if self._device is None else (self._device.out_speed, self._device.in_speed)
        if ASSUMED_LINK not in speeds:
            _say("copies here: {}/s out, {}/s back".format(*map(format_bytes, speeds)))
            return
        sides = [side for side, speed in zip(("out", "back"), speeds, strict=True) if speed == ASSUMED_LINK]
        way = "each way" if len(sides) == 2 else sides[0]
        _say(f"too little was copied to measure it: {ASSUMED_LINK / 1e9:.0f} GB/s {way} is assumed{self._why}")


def _kind(raw: RawIteration) -> tuple[int, int]:
    return len(raw["op_name"]), int(raw["tensor_bytes"][raw["tensor_born"] >= 0].sum())


def _differ(times: list[float]) -> bool:
    """Whether a quarter of them is much longer than another quarter: something else takes this machine's time."""
    by_length, quarter = sorted(times), len(times) // 4
    return bool(times) and by_length[-1 - quarter] > _ALL_AGREE * by_length[quarter]


def _paced(trace: lgm.Trace, times: list[float]) -> lgm.Trace:
    """It, as if it took what is in the middle of these: the quickest is what a run takes that is lucky in each step."""
    pace = statistics.median(times) / trace.seconds if trace.seconds else 1.0
    return dataclasses.replace(trace, op_ns=np.rint(trace.op_ns * pace).astype(np.int64))


def _say(text: str) -> None:
    say(f"vtensor fit: {text}")
