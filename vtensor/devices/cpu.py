"""A session on torch's CPU tensors.

Covers: starting and stopping the core in ordinary memory (``port``).
Leaves: everything a session is on any device (``session``).
"""

from __future__ import annotations

from ..errors import ConfigError
from ..native.core import Core
from ..settings.config import Config

__all__ = ["fit", "resize", "start", "stop"]


def fit(_core: Core, config: Config) -> Config:
    """Any settings suit a processor."""
    return config


def start(core: Core, config: Config) -> None:
    """Start the core; :func:`stop` undoes it."""
    try:
        core.start(
            **config.for_core,
            spill_dir=config.spill_dir,
            link=config.link,
            # Else what first exceeds the budget is not observed, and could not be refused; what it is made of would be
            # taken for all that it does, and recomputed.
            observe_always=config.oversize == "raise" or config.sees_all,
        )
    except core.InvalidUse as error:
        raise ConfigError(str(error)) from None


def resize(_core: Core, _config: Config) -> None:
    """Nobody but the core holds chunks."""


def stop(core: Core) -> None:
    """Stop the core; does nothing where it does not run."""
    core.stop()
