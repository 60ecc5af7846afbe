"""What a session may be asked for, beside its budget: the arguments of :func:`vtensor.enable` and their defaults.

Covers: which names there are, which words each takes. Leaves: what they mean in bytes (``config``), to people (the
docstring of :func:`vtensor.enable`, ``vtensor run --help``). Imports nothing of this package but its error.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal, get_args

from ..errors import ConfigError

__all__ = ["Device", "Granularity", "Options", "Oversize", "Policy", "Recompute"]

Device = Literal["auto", "cpu", "cuda"]
Policy = Literal["plan", "lru", "size_staleness", "delta"]
Granularity = Literal["chunk", "tensor"]
Oversize = Literal["borrow", "raise"]
Recompute = Literal["auto", "never", "only"]


@dataclass(frozen=True, slots=True)
class Options:
    """As :func:`vtensor.enable` takes them, words checked, and sizes as they were written. None: whatever is usual."""

    device: Device = "auto"
    chunk: int | str | None = None
    min_size: int | str | None = None
    host: int | str | None = None
    spill_dir: str | os.PathLike[str] | None = None
    policy: Policy = "plan"
    granularity: Granularity = "chunk"
    oversize: Oversize = "borrow"
    link: float | str | None = None
    recompute: Recompute = "auto"

    def __post_init__(self) -> None:
        """Raise ConfigError where a word is unknown, or two contradict each other."""
        words = {"device": Device, "policy": Policy, "granularity": Granularity, "oversize": Oversize}
        for name, known in (words | {"recompute": Recompute}).items():
            if (word := getattr(self, name)) not in get_args(known):
                choices = ", ".join(map(repr, get_args(known)))
                raise ConfigError(f"{name}={word!r} is unknown; choose one of {choices}")
        if self.policy == "delta" and self.recompute == "never":
            raise ConfigError(
                "policy='delta' chooses between copying and recomputing; recompute='never' leaves it no choice"
            )
        if self.spill_dir is not None and self.recompute == "only":
            raise ConfigError("recompute='only' copies nothing, so spill_dir= would stay empty; leave one of them out")
