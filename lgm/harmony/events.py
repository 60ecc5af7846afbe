"""What happens when, by simulation: copies in, copies out and computing of each device, each a queue in order.

Source: Harmony's event simulator. An event begins when what it needs is there and its queue is free; weights of the
next task may come once the last microbatch of this one computes; inputs are there for one microbatch ahead.

Covers: the time of an iteration, the bytes it swaps, every event for a picture.
Leaves: which packs and microbatches (``search``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

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
        self._upto: list[tuple[int, float]] = []

    def add(self, samples: int, end: float) -> None:
        self._upto.append((samples, end))

    def ready(self, samples: int) -> float:
        return next((end for upto, end in self._upto if upto >= samples), 0.0)


class _Run:
    def __init__(self, profile: Profile, schedule: Schedule, machine: Machine) -> None:
        self.profile, self.schedule, self.machine = profile, schedule, machine
        self.data = schedule.mode == "data"
        self.devices = 1 if self.data else machine.devices
        self.samples = schedule.samples // (machine.devices if self.data else 1)
        self.copies = machine.devices if self.data else 1  # of every device's bytes
        self.free: dict[tuple[int, str], float] = {}
        self.next_weights = [0.0] * self.devices  # when those of the next task may begin to come
        self.out = Outcome()
        self.activation = _Handed(None)
        self.gradient = _Handed(None)
        self.kept: dict[int, _Handed] = {}  # inputs that wait for backward, by layer
        self.wanted = {first for first, _ in schedule.backward[:-1]} - {0}

    def event(self, device: int, queue: str, name: str, seconds: float, *after: float) -> float:
        begin = max(self.free.get((device, queue), 0.0), *after, 0.0)
        self.free[device, queue] = end = begin + seconds
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

    def forward(self, task: Task, again: bool) -> None:
        """Also the forward of backward tasks: `again` says so, and then goes backward at once."""
        p, size = self.profile, range(task.first, task.stop)
        name = f"{'backward' if again else 'forward'} {task.first}-{task.stop - 1}"
        weights = self.swap_in(
            task.device,
            f"weights {name}",
            float(p.weights[task.first : task.stop].sum()),
            self.next_weights[task.device],
        )
        given = self.kept.get(task.first, self.activation) if again else self.activation
        if task.first == 0:
            given = _Handed(None)  # the batch
        handed, gradients = _Handed(task.device), _Handed(task.device)
        forward = float(p.forward[task.first : task.stop].sum())
        backward = float(p.backward[task.first : task.stop].sum())
        last_pack = again and task.stop == len(p)
        ends: list[float] = []
        done = 0
        while done < self.samples:
            count = min(task.samples, self.samples - done)
            upto = done + count
            before = ends[-2] if len(ends) > 1 else 0.0  # inputs of two microbatches have room
            arrived = self.take(given, task, upto, count * float(p.inputs[task.first]), before)
            if again and not last_pack:
                arrived = max(arrived, self.take(self.gradient, task, upto, count * float(p.inputs[task.stop]), before))
            seconds = count * (forward + (backward if again else 0.0))
            end = self.event(task.device, "compute", name, seconds, weights, arrived)
            self.next_weights[task.device] = end - seconds
            ends.append(end)
            for layer in self.wanted.intersection(size) if not again else ():
                kept = self.kept.setdefault(layer, _Handed(None))
                kept.add(upto, self.swap_out(task.device, "keep", count * float(p.inputs[layer]), end))
            if not again and task.stop < len(p):
                self.hand(handed, task, upto, count * float(p.inputs[task.stop]), end)
            if again and task.first > 0:
                self.hand(gradients, task, upto, count * float(p.inputs[task.first]), end)
            done = upto
        if again:
            self.gradient = gradients
        else:
            self.activation = handed

    def update(self, task: Task) -> None:
        p, of = self.profile, slice(task.first, task.stop)
        weights, states = float(p.weights[of].sum()), float(p.states[of].sum())
        name = f"{task.first}-{task.stop - 1}"
        there = self.swap_in(task.device, f"states {name}", states, self.next_weights[task.device])
        complete = self.free.get((task.device, "compute"), 0.0)
        if self.data and self.machine.devices > 1:
            moved = 2 * (self.machine.devices - 1) / self.machine.devices * weights
            self.out.between_devices += moved * self.copies
            complete = self.event(task.device, "peer", f"average {name}", moved / self.machine.peer, complete)
        end = self.event(task.device, "compute", f"update {name}", float(p.update[of].sum()), there, complete)
        self.swap_out(task.device, f"updated {name}", weights + states, end)

    def all(self) -> Outcome:
        for task in tasks_of(self.schedule, self.devices):
            if task.kind == "update":
                self.update(task)
            else:
                self.forward(task, task.kind == "backward")
        self.out.seconds = max(self.free.values(), default=0.0)
        busy = [0.0] * self.devices
        for event in self.out.events:
            busy[event.device] += (event.end - event.begin) * (event.queue == "compute")
        self.out.computing = max(busy)
        return self.out


def simulate(profile: Profile, schedule: Schedule, machine: Machine) -> Outcome:
    """One iteration from its first task on, all weights and states in host memory before and after."""
    return _Run(profile, schedule, machine).all()
