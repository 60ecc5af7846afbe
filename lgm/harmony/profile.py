"""What layers take: the questions that a schedule asks of whoever knows them.

Covers: the interface. Leaves: layers read off a trace (``recorded``), layers that were each measured alone
(``measured``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from ..records.model import Floats

__all__ = ["Profile"]


class Profile(ABC):
    """n layers, one after the other."""

    __slots__ = ()

    weights: Floats
    """[n] Bytes of weights and buffers; the gradient takes as many."""
    states: Floats
    """[n] Bytes of the optimizer's states."""
    update: Floats
    """[n] Seconds."""

    def __len__(self) -> int:
        return len(self.weights)

    @abstractmethod
    def forward(self, samples: int) -> Floats:
        """[n] Seconds of a microbatch of so many samples."""

    @abstractmethod
    def backward(self, samples: int) -> Floats:
        """[n] Seconds of a microbatch, without running forward again."""

    @abstractmethod
    def given(self, samples: int) -> Floats:
        """[n] Bytes of a microbatch that a layer is given; its gradient takes as many."""

    @abstractmethod
    def bytes_forward(self, first: int, stop: int, samples: int) -> float:
        """What the layers [first, stop) need at once while they run forward; infinite if nobody knows."""

    @abstractmethod
    def bytes_backward(self, first: int, stop: int, samples: int) -> float:
        """What they need while they run forward again, and backward; infinite if nobody knows.

        What of the next task comes meanwhile is not counted, as in the published scheduler: leave room for it.
        """
