"""The control groups this process is in: containers, services, jobs of a cluster.

Covers: how much memory each may use, and how much of that is left, in both versions of the kernel's files.
Leaves: the machine's own memory (``available``).

A group is known by its path, which a container may see as ``/`` or as the host does, while what is mounted there begins
at its own: so whatever of the path exists is read, up to the root. The least of all counts, as each holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

__all__ = ["Group", "memory_groups"]

_OWN = Path("/proc/self/cgroup")
_MOUNTED = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Group:
    """One that limits memory."""

    limit: int
    """Bytes."""
    left: int
    """Bytes that can still be had: files that are only cached there make way."""


@dataclass(frozen=True, slots=True)
class _Files:
    limit: str
    used: str
    cached: tuple[str, str]
    """Lines of ``memory.stat``: files that nobody reads now, and files that were read again."""


_FIRST = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))
_SECOND = _Files("memory.max", "memory.current", ("inactive_file", "active_file"))


def memory_groups() -> list[Group]:
    """Those that limit this process's memory, the nearest first; none where there is no limit, or no such kernel."""
    found = []
    for folder, files in _folders():
        limit, used = _number(folder / files.limit), _number(folder / files.used)
        if limit is not None and used is not None:
            found.append(Group(limit, max(limit - used + _cached(folder, files), 0)))
    return found


def _folders() -> Iterator[tuple[Path, _Files]]:
    for line in _lines(_OWN):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            root, files = _MOUNTED / "memory", _FIRST
        elif number == "0":
            root, files = _MOUNTED, _SECOND
        else:
            continue
        inside = PurePosixPath(path.strip().lstrip("/"))
        for each in (inside, *inside.parents):
            if ".." not in each.parts:  # a group outside of what this container sees
                yield root / each, files


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _number(path: Path) -> int | None:
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdigit() else None


def _cached(folder: Path, files: _Files) -> int:
    """What can be had of cached files: of those that are read again, half, as Linux itself says of a machine's."""
    stat = dict(line.split(" ", 1) for line in _lines(folder / "memory.stat") if " " in line)
    idle, busy = (int(stat.get(name, 0)) for name in files.cached)
    return idle + busy // 2
