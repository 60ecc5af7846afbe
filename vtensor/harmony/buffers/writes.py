"""Buffers that somebody writes who is not seen to run.

Microbatches keep their order at each module that changes its buffers when it runs. A module that has layers in it runs
while these take turns, and what a method writes, or the loss, is written while nobody runs: there is no order to keep.

Covers: which buffers were written while none of the modules that have them ran.
Leaves: which modules there are (``snapshots``), when they run (whoever has the hooks), what follows from it
(``layer_order``), the same later, at little cost (``between``).
"""

from __future__ import annotations

from collections import Counter

from torch import nn

from .memories import Memory
from .snapshots import BufferSnapshot

__all__ = ["UnseenWrites"]


class UnseenWrites:
    """Of a snapshot's buffers, as they are when this is made.

    Whoever runs a module with buffers says so by :meth:`enters` and :meth:`leaves`.
    """

    def __init__(self, snapshot: BufferSnapshot) -> None:
        self._snapshot = snapshot
        modules = [*snapshot.all(), *snapshot.containers]
        memories = dict.fromkeys(memory for module in modules for memory in snapshot.memories(module))
        self._known = {memory: memory for memory in memories}  # as it was left
        self._running = Counter[Memory]()
        self._unseen: dict[Memory, None] = {}

    def enters(self, module: nn.Module) -> None:
        """Its forward begins."""
        for memory in self._snapshot.memories(module):
            if not self._running[memory]:
                self._look(memory)
            self._running[memory] += 1

    def leaves(self, module: nn.Module) -> None:
        """Its forward has ended, and what it wrote is seen."""
        for memory in self._snapshot.memories(module):
            self._running[memory] -= 1
            if not self._running[memory] and not self._known[memory].is_still():
                self._known[memory] = memory.now()

    def found(self) -> list[Memory]:
        """What was written unseen since this was made."""
        for memory in self._known:
            if not self._running[memory]:
                self._look(memory)
        return list(self._unseen)

    def _look(self, memory: Memory) -> None:
        known = self._known[memory]
        if not known.is_still():
            if not known.is_carried_on():
                self._unseen[memory] = None
            self._known[memory] = memory.now()
