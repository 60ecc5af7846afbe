"""What a plan must know of a device, and what it promises there.

Covers: speeds and costs, a prediction, and that their values make sense.
Leaves: traces and plans (``model``), how a device's speeds are found (``vtensor/planning/speeds.py``).
"""

from __future__ import annotations

from dataclasses import dataclass

from .limits import LONGEST_SECONDS, MOST_BYTES, MOST_SPEED, check_number, check_whole

__all__ = ["ASSUMED_LINK", "HOST_COSTS", "Device", "Prediction"]


@dataclass(frozen=True, slots=True)
class Device:
    """What the plan must know of a device."""

    budget_chunks: int
    out_speed: float
    """Bytes a second from the device to the host."""
    in_speed: float
    """Bytes a second back."""
    latency: float = 0.0
    """Seconds a copy takes beside its bytes."""
    tax: float = 0.0
    """Seconds of computing lost for each byte copied: 0 where copy engines are their own, as on a GPU; where
    copying takes the processor that computes, about 1 / (speed x cores)."""
    switch: float = 0.0
    """Seconds of computing lost for each chunk that leaves or comes (mapping it)."""
    jitter: float = 0.0
    """Seconds a copy may begin late, where copy threads share processors with computing; arrivals begin that much
    earlier."""

    def __post_init__(self) -> None:
        chunks = check_whole("device: budget_chunks", self.budget_chunks, 1, MOST_BYTES)
        object.__setattr__(self, "budget_chunks", chunks)
        for name in ("out_speed", "in_speed"):
            object.__setattr__(self, name, check_number(f"device: {name}", getattr(self, name), 1, MOST_SPEED))
        for name in ("latency", "tax", "switch", "jitter"):
            object.__setattr__(self, name, check_number(f"device: {name}", getattr(self, name), 0, LONGEST_SECONDS))


ASSUMED_LINK = 12e9
"""Bytes a second each way where nobody says or has measured: what PCIe 3.0 x16 carries, and PCIe 4.0 x8."""

HOST_COSTS = {"switch": 8e-6, "jitter": 4e-3}
"""Of a :class:`Device` whose memory is this machine's: mapping a chunk (DESIGN.md has the measurement), and how long a
copy thread may wait for a processor that computes."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the simulator says a plan will do in its steady state."""

    step_seconds: float
    peak_chunks: int
    """Most chunks held at once: resident, leaving and arriving vTensors."""
    waits_seconds: float
    """Of the step, spent waiting for copies. The rest beside computing is what moves take of it (tax and switch)."""
    out_chunks: int
    in_chunks: int

    def __post_init__(self) -> None:
        for name in ("step_seconds", "waits_seconds"):
            seconds = check_number(f"prediction: {name}", getattr(self, name), 0, LONGEST_SECONDS)
            object.__setattr__(self, name, seconds)
        for name in ("peak_chunks", "out_chunks", "in_chunks"):
            chunks = check_whole(f"prediction: {name}", getattr(self, name), 0, MOST_BYTES)
            object.__setattr__(self, name, chunks)
