"""Plans, and what they mean for who follows them, in a process of their own: asked for over its standard input and
answered over its standard output.

For programs that train meanwhile: a thread would take Python's lock from them, and a core from threads that wait for
each other. The process gives way to others where it is told to, and ends when nobody asks for a while, or who asks is
gone.

Covers: the process, and what goes through the pipes: one of these types as a pickle, after its length.
Leaves: starting it and what happens where it cannot be started (``vtensor/planning/helper.py``).
"""

from __future__ import annotations

import os
import pickle
import select
import struct
from dataclasses import dataclass
from typing import Any, Protocol

from .analysis import Recompute, analyze
from .errors import InfeasibleError
from .placing.orders import Orders, orders
from .records.device import Device
from .records.model import Plan, Trace

__all__ = [
    "Answer",
    "Asked",
    "Failed",
    "Infeasible",
    "Order",
    "Question",
    "Ready",
    "Search",
    "framed",
    "main",
    "receive",
]

_PATIENCE = 30.0  # seconds without a question


@dataclass(frozen=True, slots=True)
class Ready:
    """Asked: whether it is there. Answered: it is."""


@dataclass(frozen=True, slots=True)
class Search:
    """Asked: a plan, as of :func:`lgm.analyze`."""

    trace: Trace
    device: Device
    recompute: Recompute
    hasty: bool


@dataclass(frozen=True, slots=True)
class Order:
    """Asked: what a plan means for who follows it, as of :func:`lgm.placing.orders.orders`."""

    plan: Plan
    seated: int | None


@dataclass(frozen=True, slots=True)
class Infeasible:
    """Answered: there is no plan; what the exception that says so is made of."""

    operation: str
    needed: int
    budget: int
    text: str


@dataclass(frozen=True, slots=True)
class Failed:
    """Answered: something else went wrong, in words."""

    why: str


Asked = Ready | Search | Order
Answer = Ready | Plan | Orders | Infeasible | Failed


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, and how the process gives way to others while it answers, and from then on."""

    asked: Asked
    nice: int = 0
    """As of nice(2)."""
    aside: bool = False
    """It takes only the time that others leave (SCHED_IDLE)."""


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


def _answer(question: Question) -> Answer:
    _give_way(question.nice, question.aside)
    try:
        match question.asked:
            case Search(trace, device, recompute, hasty):
                return analyze(trace, device, recompute=recompute, hasty=hasty)
            case Order(plan, seated):
                return orders(plan, seated)
            case Ready():
                return question.asked
    except InfeasibleError as error:
        return Infeasible(error.operation, error.needed, error.budget, str(error))
    except Exception as error:  # whoever asks goes on without a plan
        return Failed(f"{type(error).__name__}: {error}")


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
