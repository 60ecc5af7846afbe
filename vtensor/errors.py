"""The exceptions vtensor raises of its own; each refines the builtin it would otherwise be.

Out of memory is always :class:`torch.OutOfMemoryError`, as from torch itself.
"""

from __future__ import annotations

import os

__all__ = [
    "BuildError",
    "ConfigError",
    "HarmonyError",
    "NotEnabledError",
    "NotRecordedError",
    "UnsupportedDeviceError",
    "VtensorError",
]


YES = ("1", "true", "yes", "on")
"""What a switch says that is on."""


class VtensorError(Exception):
    """Base of all exceptions below."""


class ConfigError(VtensorError, ValueError):
    """An argument or an environment variable that can never work; the message says what would."""


class NotEnabledError(VtensorError, RuntimeError):
    """A call that needs vtensor to be enabled."""

    def __init__(self) -> None:
        switched_off = os.environ.get("VTENSOR_DISABLE", "").lower() in YES
        why = ", which does nothing while VTENSOR_DISABLE is set" if switched_off else ""
        super().__init__(f"vtensor is not enabled; call vtensor.enable(budget=...) first{why}")


class NotRecordedError(VtensorError, RuntimeError):
    """A question about an iteration before a whole one was recorded; the message says how one is."""


class UnsupportedDeviceError(VtensorError, RuntimeError):
    """The device asked for is not there, or this version cannot manage it."""


class BuildError(VtensorError, ImportError):
    """The native core could not be compiled; the message holds the compiler's own words."""


class HarmonyError(VtensorError, RuntimeError):
    """A model, loss or optimizer that cannot be trained in the order of packs; the message says what can be done."""
