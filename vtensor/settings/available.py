"""How much memory there is, and what of it a budget may be where none is given.

Covers: RAM, what is free of it, or of a GPU; a disk for what does not fit.
Leaves: sizes that people give (``config``), what a container or a job may use (``groups``), keeping it so
(``session.reserve``).
"""

from __future__ import annotations

import os
import re
import resource
import tempfile
from pathlib import Path

from .groups import memory_groups

__all__ = [
    "budget_of_its_own",
    "free_memory",
    "host_store_of_its_own",
    "most_chunks",
    "most_mappings",
    "physical_memory",
    "processors",
    "spill_directory",
]

_RESERVE = 512 << 20  # at least: what is not managed, and what others take meanwhile
_IN_RAM = ("tmpfs", "ramfs")  # file systems whose files take RAM
_USUAL_MAPPINGS = 65530  # Linux' own default


def physical_memory() -> int:
    """Bytes of RAM this process may use: the machine's, or of the control groups it is in where that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([total, *(group.limit for group in memory_groups())])


def free_memory(device: str, ordinal: int | None = None) -> int:
    """Bytes that nothing uses now, of RAM (what the system can give without swapping) or of a GPU (the current one)."""
    if device == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(ordinal)[0])
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    for line in _told("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) << 10
    return min([free, *(group.left for group in memory_groups())])


def most_mappings() -> int:
    """How many mappings Linux allows a process (``vm.max_map_count``)."""
    return int(_told("/proc/sys/vm/max_map_count") or _USUAL_MAPPINGS)


def _told(path: str) -> str:
    """By the kernel; nothing where a service is not shown all of ``/proc`` (systemd's ``ProcSubset=pid``)."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def most_chunks() -> int:
    """How many chunks of RAM those are enough for: one takes up to two."""
    return most_mappings() // 2


def processors() -> int:
    """Those that this process may use (``taskset``, a job's share of a machine)."""
    return len(os.sched_getaffinity(0))


def host_store_of_its_own(budget: int) -> int:
    """Four fifths of RAM; where addresses are limited (``ulimit -v``), what leaves the program half of those it has.

    A session takes three times its `budget` of them besides: the chunks, and twice as many for its tensors. The store
    has a third at most, and a quarter at least.
    """
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    room = physical_memory() * 4 // 5
    if limit == resource.RLIM_INFINITY:
        return room
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    left = max(limit - used, 0)
    return min(room, max(min(left // 3, left // 2 - 3 * budget), left // 4))


def budget_of_its_own(free: int) -> int:
    """What is free, less a tenth for what is not managed, or 512 MiB where that is more; half of very little."""
    return max(free - max(free // 10, _RESERVE), free // 2)


def spill_directory() -> str | None:
    """A directory for temporary files that is on a disk; None if all that are usual take RAM."""
    mounts = [line.split()[1:3] for line in _told("/proc/mounts").splitlines()]
    mounts = [[re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), at), kind] for at, kind in mounts]  # of a space
    for candidate in (tempfile.gettempdir(), "/var/tmp", "."):
        path = os.path.realpath(candidate)
        above = [(len(at), kind) for at, kind in mounts if (path + "/").startswith(at.rstrip("/") + "/")]
        above.sort(key=lambda mount: mount[0])  # of two at one place the later one covers the other
        if above and above[-1][1] not in _IN_RAM and os.access(path, os.W_OK):
            return path
    return None
