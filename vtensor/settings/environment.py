"""Switches that are asked for from outside: ``docs/environment.md`` lists all.

Covers: those that say yes, what is verified, which of several processes this is.
Leaves: variables that one module alone asks for, to it.
"""

from __future__ import annotations

import os

from ..errors import YES, ConfigError

__all__ = ["is_set", "is_verifying", "rank_of_several"]


def is_set(name: str) -> bool:
    """Whether an environment variable says yes."""
    return os.environ.get(name, "").lower() in YES


def is_verifying() -> bool:
    """Whether ``VTENSOR_VERIFY=replay``: nothing is dropped, and what would be is recomputed and compared.

    Raises
    ------
    ConfigError
        If it says something else.
    """
    if (asked := os.environ.get("VTENSOR_VERIFY", "")) in ("", "replay"):
        return asked == "replay"
    raise ConfigError(f"VTENSOR_VERIFY={asked} is unknown; there is 'replay' only")


def rank_of_several() -> tuple[str, str] | None:
    """Which of how many processes this is, where ``torchrun`` or the like started several."""
    rank, size = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    return (rank, size) if rank and size not in ("", "1") else None
