"""The processes of a group that are on this machine, and memory they share.

Covers: who they are, one memory for the same tensors of all of them, which of them does what.
Leaves: the memory itself (``host_memory``), what lies in it (``hosted``), carrying bytes (``mail``).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from ...logs import log
from ..processes.mail import Mail
from .host_memory import HostMemory, Shared

__all__ = ["Neighbours"]


class Neighbours:
    """To be made by all processes of the group.

    Parameters
    ----------
    group
        A process group; True for all processes.
    """

    def __init__(self, group: Any) -> None:
        everyone = Mail(group)
        found = [everyone.tell((distributed.get_rank(), _machine()), rank) for rank in range(everyone.size)]
        self.mail = Mail([rank for rank, machine in found if machine == _machine()])

    def agree(self, flags: Sequence[bool]) -> list[bool]:
        """Which are true in all of them."""
        return (self.mail.sum(torch.tensor(flags, dtype=torch.int32)) == self.mail.size).tolist()

    def memory(self, tensors: Sequence[torch.Tensor], *, pinned: bool) -> HostMemory | None:
        """One memory for all; None if one of them could not have it."""
        shared = Shared(HostMemory.size_for(tensors)) if self.mail.rank == 0 else None
        memory: HostMemory | None = None
        try:
            memory = HostMemory(tensors, self.mail.tell(shared and shared.path, 0), pinned=pinned)
        except OSError as error:
            log.warning("this process cannot share weights in the host's memory with others (%s)", error)
        complete = self.agree([memory is not None])[0]
        if shared is not None:
            shared.close()
        return memory if complete else None


def _machine() -> tuple[str, int]:
    """The same where one process can open what another has open: one kernel, one view of its processes."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(), Path("/proc/self/ns/pid").stat().st_ino
