"""Plans, and what they mean for who follows them, in a process of their own: asked for over its standard input and
answered over its standard output.

For programs that train meanwhile: a thread would take Python's lock from them, and a core from threads that wait for
each other. The process gives way to others where it is told to, and ends when nobody asks for a while, or who asks is
gone.

Covers: the process, and what goes through the pipes: pickles, each after its length.
Leaves: starting it and what happens where it cannot be started (``vtensor/planning/helper.py``).
"""

from __future__ import annotations

import os
import pickle
import select
import struct
from typing import Any, Protocol

from .analysis import analyze
from .errors import InfeasibleError
from .placing.orders import Orders, orders
from .records.model import Plan

__all__ = ["Answer", "framed", "main", "receive"]

# What was asked for, or what InfeasibleError is made of, or what else went wrong, in words.
Answer = Plan | Orders | tuple[str, int, int, str] | str

_PATIENCE = 30.0  # seconds without a question


class Readable(Protocol):
    """What gives the bytes that are asked for, fewer at its end."""

    def read(self, count: int, /) -> bytes: ...


def framed(message: Any) -> bytes:
    """A message as it goes through a pipe."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return struct.pack("<Q", len(data)) + data


def receive(pipe: Readable) -> Any:
    """Read a message. Raises EOFError if the other side is gone."""
    head = pipe.read(8)
    if len(head) < 8:
        raise EOFError("the other side is gone")
    (length,) = struct.unpack("<Q", head)
    data = pipe.read(length)
    if len(data) < length:
        raise EOFError("the other side is gone")
    return pickle.loads(data)


def _give_way(nice: int, aside: bool) -> None:
    """From now on; there is no way back."""
    os.nice(max(nice - os.nice(0), 0))
    if aside and hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _answer(question: Any) -> Answer:
    *asked, nice, aside = question
    _give_way(nice, aside)
    if not asked:
        return "ready"
    try:
        if isinstance(asked[0], Plan):
            return orders(*asked)
        trace, device, recompute, hasty = asked
        return analyze(trace, device, recompute=recompute, hasty=hasty)
    except InfeasibleError as error:
        return error.operation, error.needed, error.budget, str(error)
    except Exception as error:  # whoever asks goes on without a plan
        return f"{type(error).__name__}: {error}"


def main() -> None:
    """Answer until nobody asks any more."""
    # What is printed by accident must not go between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    questions = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115 (whose file this is stays open)
    try:
        while select.select([questions], [], [], _PATIENCE)[0]:
            answers.write(framed(_answer(receive(_Whole(questions)))))
            answers.flush()
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        pass
    os._exit(0)  # the pipe's other end may be gone: nothing is flushed


class _Whole:
    """Reads as many bytes as are asked for, and no byte more, so that ``select`` sees what is left."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def read(self, count: int) -> bytes:
        parts = []
        while count > 0 and (part := self._raw.read(min(count, 1 << 20))):
            parts.append(part)
            count -= len(part)
        return b"".join(parts)
