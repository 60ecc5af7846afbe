"""In which order packs are run, and where.

Covers: machines, schedules, the row of tasks of one iteration.
Leaves: when each happens (``events``), what a pack needs (``profile``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from ..errors import LgmError
from .packing import Packs

__all__ = ["Machine", "Mode", "Place", "Schedule", "Task", "tasks_of"]

Mode = Literal["pipeline", "data"]
Place = Literal["device", "host"]


@dataclass(frozen=True, slots=True)
class Machine:
    """Devices of one kind, that share what joins them to the host."""

    devices: int
    budget: float
    """Bytes of each device."""
    link: float
    """Bytes a second each way between the host and all devices together."""
    peer: float
    """Bytes a second from one device to another."""
    own_links: bool = False
    """Whether each device has such a link for itself."""
    optimizer_on: Place = "device"
    """Where weights are updated. On the host, gradients go there, and states stay."""
    overlap: bool = True
    """Whether a device copies while it computes."""
    between: float = 0.0
    """Seconds that a device takes from one task to the next."""

    def __post_init__(self) -> None:
        if self.devices < 1 or self.budget <= 0 or self.link <= 0 or self.peer <= 0:
            raise LgmError("a machine has at least one device, and budgets and speeds above 0")
        if self.optimizer_on not in get_args(Place):
            raise LgmError(f"optimizers are on one of {', '.join(get_args(Place))}")

    @property
    def lane(self) -> float:
        """Bytes a second of each device, each way, while all copy."""
        return self.link if self.own_links else self.link / self.devices


@dataclass(frozen=True, slots=True)
class Schedule:
    """What Harmony searches for. Microbatches are counted in samples."""

    mode: Mode
    """``"pipeline"``: packs go around the devices. ``"data"``: each device takes all packs for its share."""
    samples: int
    forward_samples: int
    forward: Packs
    """Of all layers before the last backward pack, whose forward and backward are one task."""
    backward_samples: int
    backward: Packs

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise LgmError(f"the mode is one of {', '.join(get_args(Mode))}")


@dataclass(frozen=True, slots=True)
class Task:
    """All microbatches through one pack, or its update."""

    kind: Literal["forward", "backward", "update"]
    first: int
    stop: int
    samples: int
    """Of a microbatch."""
    device: int


def tasks_of(schedule: Schedule, devices: int) -> Iterator[Task]:
    """In the order in which they begin; in mode ``"data"`` those of one device."""
    turn = 0
    for first, stop in schedule.forward:
        yield Task("forward", first, stop, schedule.forward_samples, turn % devices)
        turn += 1
    for first, stop in reversed(schedule.backward):
        yield Task("backward", first, stop, schedule.backward_samples, turn % devices)
        yield Task("update", first, stop, 0, turn % devices)
        turn += 1
