"""Sizes, speeds and shares as people write them: :mod:`lgm.records.units`, with this package's error."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from lgm.records import units
from lgm.records.units import format_bytes

from ..errors import ConfigError

__all__ = ["format_bytes", "parse_budget", "parse_bytes", "parse_link"]

P = ParamSpec("P")
T = TypeVar("T")


def _or_config_error(parse: Callable[P, T], *value: P.args, **names: P.kwargs) -> T:
    try:
        return parse(*value, **names)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def parse_bytes(value: int | str, name: str) -> int:
    """Bytes of ``4096`` or ``"2MiB"``; errors begin with `name`."""
    return _or_config_error(units.parse_bytes, value, name)


def parse_link(value: float | str | None) -> float:
    """Bytes a second of ``None`` (no limit: 0), ``6e9`` or ``"6GB/s"``."""
    return 0.0 if value is None else _or_config_error(units.parse_speed, value)


def parse_budget(value: int | float | str, total: int, name: str) -> int:
    """Bytes of a size, or of a share (``"50%"``, ``0.5``) of `total`."""
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral):
        value = float(value)  # NumPy has more kinds
    share = _or_config_error(units.parse_share, value, name)
    if share is not None:
        return int(share * total)
    return parse_bytes(int(value) if isinstance(value, float) else value, name)
