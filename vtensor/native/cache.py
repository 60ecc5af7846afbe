"""Where builds of the native core are kept, and whether what lies there may be run.

Covers: the folder, made for its user alone; refusing a library that somebody else could have put there, as ssh refuses
keys: loading it would run their code; one that was cut off, which would end the process without a word.
Leaves: building and loading (``library``).

Environment: ``VTENSOR_CACHE``, default ``~/.cache/vtensor``.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
import struct
from pathlib import Path

from ..errors import BuildError

__all__ = ["cache_dir", "check_ours", "is_whole", "make_private"]

_ELSEWHERE = "or set VTENSOR_CACHE to a directory of yours"


def cache_dir() -> Path:
    """Where builds are kept."""
    chosen = os.environ.get("VTENSOR_CACHE")
    if chosen:
        return Path(os.path.expanduser(chosen))  # noqa: PTH111 -- nobody of that name: it is one
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vtensor"
    except RuntimeError as error:  # no home directory
        raise BuildError(f"there is no place for the compiled core ({error}); set VTENSOR_CACHE") from None


def make_private(directory: Path) -> None:
    """Make a directory, and those above it that are missing, for this user alone."""
    if not directory.is_dir():
        make_private(directory.parent)
        directory.mkdir(mode=0o700, exist_ok=True)


def is_whole(library: Path) -> bool:
    """Whether it is there up to its last section, whose table an ELF file has at its end."""
    try:
        with library.open("rb") as file:
            head, size = file.read(64), os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        return False
    if len(head) < 64 or head[:4] != b"\x7fELF":
        return False
    sections, entry, count = (*struct.unpack_from("<Q", head, 0x28), *struct.unpack_from("<HH", head, 0x3A))
    return bool(size >= sections + entry * count)


def check_ours(library: Path) -> None:
    """Refuse a build that somebody else could have made or can change. What is not there yet is not looked at.

    The library, the directory of its build and the cache must be this user's, or root's, who can do all that this user
    can and may install one build for everybody. Nobody else may write to them, nor to any directory above, unless it is
    sticky (``/tmp``), so that nobody renames there what is not theirs.

    Parameters
    ----------
    library
        Without symbolic links: what is looked at must be what is loaded.

    Raises
    ------
    BuildError
        Naming the path, and saying what to do.
    """
    for above, place in enumerate((library, *library.parents)):
        if not place.exists():
            continue
        found = place.stat()
        if above <= 2 and found.st_uid not in (0, os.geteuid()):
            raise BuildError(
                f"{place} belongs to user {found.st_uid}, and loading the core from there would run that user's code; "
                f"remove it, {_ELSEWHERE}"
            )
        if _others_write(found):
            raise BuildError(
                f"others can write to {place} (mode {stat.S_IMODE(found.st_mode):04o}), and loading the core from "
                f"there would run what they put there; 'chmod go-w {place}', {_ELSEWHERE}"
            )


def _others_write(found: os.stat_result) -> bool:
    if stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX:
        return False
    by_group = bool(found.st_mode & stat.S_IWGRP) and not _is_own_group(found.st_gid)
    return by_group or bool(found.st_mode & stat.S_IWOTH)


def _is_own_group(gid: int) -> bool:
    """Whether nobody else is in it. Many systems give each user such a group, and make ``~/.cache`` writable to it."""
    try:
        group, user = grp.getgrgid(gid), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    alone = set(group.gr_mem) <= {user.pw_name}
    return alone and group.gr_gid == user.pw_gid and group.gr_name == user.pw_name
