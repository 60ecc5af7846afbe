"""What happens when, by simulation: copies in, copies out and computing of each device, each a queue in order.

Source: Harmony's event simulator. An event begins when what it needs is there and its queue is free; weights of the
next task may come once the last microbatch of this one computes; inputs are there for one microbatch ahead. Without
overlap, which is how its authors rank schedules, a device does one thing at a time.

Covers: the time of an iteration, the bytes it swaps, every event for a picture.
Leaves: which packs and microbatches (``search``).
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

from ..errors import LgmError
from .profile import Profile
from .tasks import Machine, Schedule, Task, tasks_of

__all__ = ["Event", "Outcome", "simulate"]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that keeps one queue of one device busy."""

    device: int
    queue: str
    name: str
    begin: float
    end: float


@dataclass(slots=True)
class Outcome:
    """Of one iteration."""

    seconds: float = 0.0
    computing: float = 0.0
    """Of the device that computes longest."""
    swapped_in: float = 0.0
    swapped_out: float = 0.0
    """Bytes between the host and all devices."""
    between_devices: float = 0.0
    events: list[Event] = field(default_factory=list)


class _Handed:
    """What one task hands to the next, by samples: when the first so many are there, and where."""

    def __init__(self, device: int | None) -> None:
        self.device = device  # None: in the host's memory
        self._upto: list[int] = []
        self._ends: list[float] = []

    def add(self, samples: int, end: float) -> None:
        self._upto.append(samples)
        self._ends.append(end)

    def ready(self, samples: int) -> float:
        at = bisect.bisect_left(self._upto, samples)
        return self._ends[at] if at < len(self._ends) else 0.0


class _Run:
    def __init__(self, profile: Profile, schedule: Schedule, machine: Machine) -> None:
        self.profile, self.schedule, self.machine = profile, schedule, machine
        self.data = schedule.mode == "data"
        self.devices = 1 if self.data else machine.devices
        self.samples = schedule.samples // (machine.devices if self.data else 1)
        self.copies = machine.devices if self.data else 1  # of every device's bytes
        self.busy = [0.0] * self.devices  # computing
        self.free: dict[tuple[int, str], float] = {}
        self.next_weights = [0.0] * self.devices  # when those of the next task may begin to come
        self.out = Outcome()
        self.activation = _Handed(None)
        self.gradient = _Handed(None)
        self.kept: dict[int, _Handed] = {}  # inputs that wait for backward, by layer
        self.wanted = {first for first, _ in schedule.backward[:-1]} - {0}

    def event(self, device: int, queue: str, name: str, seconds: float, *after: float) -> float:
        line = queue if self.machine.overlap or queue == "host" else "any"
        begin = max(self.free.get((device, line), 0.0), *after, 0.0)
        self.free[device, line] = end = begin + seconds
        if seconds > 0:
            self.out.events.append(Event(device, queue, name, begin, end))
        return end

    def swap_in(self, device: int, name: str, size: float, *after: float) -> float:
        self.out.swapped_in += size * self.copies
        return self.event(device, "in", name, size / self.machine.lane, *after)

    def swap_out(self, device: int, name: str, size: float, *after: float) -> float:
        self.out.swapped_out += size * self.copies
        return self.event(device, "out", name, size / self.machine.lane, *after)

    def hand(self, into: _Handed, task: Task, samples: int, size: float, end: float) -> None:
        """What was computed waits where the next task finds it: in the host's memory, if all are one device's."""
        if self.devices == 1 and size > 0:
            end = self.swap_out(task.device, "hand on", size, end)
        into.add(samples, end)

    def take(self, given: _Handed, task: Task, samples: int, size: float, after: float) -> float:
        ready = max(given.ready(samples), after)
        if given.device is None or self.devices == 1:
            return self.swap_in(task.device, "input", size, ready)
        self.out.between_devices += size
        return self.event(task.device, "peer", "input", size / self.machine.peer, ready)

    def compute(self, device: int, name: str, seconds: float, *after: float) -> float:
        self.busy[device] += seconds
        return self.event(device, "compute", name, seconds, *after)

    def forward(self, task: Task, again: bool) -> None:
        """Also the forward of backward tasks: `again` says so, and then goes backward at once."""
        p, layers, count = self.profile, slice(task.first, task.stop), task.samples
        if self.samples % count:
            raise LgmError(f"{self.samples} samples are not in microbatches of {count}")
        name = f"{'backward' if again else 'forward'} {task.first}-{task.stop - 1}"
        size = float(p.weights[layers].sum())
        weights = self.swap_in(task.device, f"weights {name}", size, self.next_weights[task.device])
        given = self.kept.get(task.first, self.activation) if again else self.activation
        if task.first == 0:
            given = _Handed(None)  # the batch
        handed, gradients = _Handed(task.device), _Handed(task.device)
        seconds = float((p.forward(count) + p.backward(count) if again else p.forward(count))[layers].sum())
        inputs = [*p.given(count).tolist(), 0.0]
        keep = self.wanted.intersection(range(task.first, task.stop)) if not again else ()
        ends: list[float] = []
        for upto in range(count, self.samples + 1, count):
            before = ends[-2] if len(ends) > 1 else 0.0  # inputs of two microbatches have room
            arrived = self.take(given, task, upto, inputs[task.first], before)
            if again and task.stop < len(p):
                arrived = max(arrived, self.take(self.gradient, task, upto, inputs[task.stop], before))
            end = self.compute(task.device, name, seconds, weights, arrived)
            self.next_weights[task.device] = end - seconds
            ends.append(end)
            for layer in keep:
                kept = self.kept.setdefault(layer, _Handed(None))
                kept.add(upto, self.swap_out(task.device, "keep", inputs[layer], end))
            if not again and task.stop < len(p):
                self.hand(handed, task, upto, inputs[task.stop], end)
            if again and task.first > 0:
                self.hand(gradients, task, upto, inputs[task.first], end)
        self.event(task.device, "compute", "between tasks", self.machine.between)
        if again:
            self.gradient = gradients
        else:
            self.activation = handed

    def update(self, task: Task) -> None:
        p, of = self.profile, slice(task.first, task.stop)
        weights, seconds = float(p.weights[of].sum()), float(p.update[of].sum())
        name = f"{task.first}-{task.stop - 1}"
        complete = self.free.get((task.device, "compute"), 0.0)
        if self.data and self.machine.devices > 1:
            moved = 2 * (self.machine.devices - 1) / self.machine.devices * weights
            self.out.between_devices += moved * self.copies
            complete = self.event(task.device, "peer", f"average {name}", moved / self.machine.peer, complete)
        if self.machine.optimizer_on == "host":
            there = self.swap_out(task.device, f"gradients {name}", weights, complete)
            self.event(task.device, "host", f"update {name}", seconds, there)
        else:
            states = float(p.states[of].sum())
            there = self.swap_in(task.device, f"states {name}", states, self.next_weights[task.device])
            end = self.compute(task.device, f"update {name}", seconds, there, complete)
            self.swap_out(task.device, f"updated {name}", weights + states, end)

    def all(self) -> Outcome:
        for task in tasks_of(self.schedule, self.devices):
            if task.kind == "update":
                self.update(task)
            else:
                self.forward(task, task.kind == "backward")
        self.out.seconds = max(self.free.values(), default=0.0)
        self.out.computing = max(self.busy)
        return self.out


def simulate(profile: Profile, schedule: Schedule, machine: Machine) -> Outcome:
    """One iteration from its first task on, all weights and states in host memory before and after."""
    return _Run(profile, schedule, machine).all()
