"""Sizes, speeds and times as people write and read them.

Covers: ``"4GiB"``, ``"40%"``, ``"12GB/s"``, ``"1.50 GiB"``, ``"3.2 ms"``.
Leaves: everything else; imports nothing of this package. The one place for it: ``vtensor`` uses this too.
"""

from __future__ import annotations

import math
import numbers
import re

__all__ = ["format_bytes", "format_seconds", "format_speed", "parse_bytes", "parse_share", "parse_speed", "share_of"]

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "k": 2**10,
    "m": 2**20,
    "g": 2**30,
    "t": 2**40,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_SLOWEST = 1000.0  # bytes a second: slower is a number that somebody gave no unit
_TOO_MUCH = 1 << 60  # bytes: of several such sizes the sum still is a number of C
_SHARE = re.compile(r"\s*(?:([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*%|(0?\.[0-9]+|1\.0*))\s*")
_BITS = re.compile(r"[KMGT]i?b\s*$")
_SIZE = re.compile(r"\s*(-?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][0-9]+)?)\s*([a-zA-Z]*)\s*")


def parse_bytes(value: int | str, name: str = "size") -> int:
    """Bytes of ``4096``, ``"2MiB"``, ``"1.5 GB"``. ``k``, ``m``, ``g`` and ``t`` alone are binary, as in torch.

    Raises
    ------
    ValueError
        If it is no size, or not positive; the message begins with `name`.
    """
    if isinstance(value, bool) or not isinstance(value, (numbers.Integral, str)):
        raise ValueError(f"{name} must be bytes or a text such as '4GiB', got {value!r}")
    if isinstance(value, str):
        match = _SIZE.fullmatch(value)
        if match is None or match[2].lower() not in _UNITS:
            raise ValueError(f"{name}={value!r} is not a size; write bytes, or a text such as '4GiB' or '512MB'")
        size = float(match[1]) * _UNITS[match[2].lower()]
        if _UNITS[match[2].lower()] == 1 and size % 1 > 0:  # not of inf
            raise ValueError(f"{name}={value!r} is a part of a byte; write '1.5GiB' or the like")
        value = _TOO_MUCH if math.isinf(size) else int(size)
    if value <= 0:
        raise ValueError(f"{name} must be positive, got {value}")
    if value >= _TOO_MUCH:
        raise ValueError(f"{name} is larger than any memory")
    return int(value)  # NumPy has more kinds


def parse_share(value: float | str, name: str = "share") -> float | None:
    """``0.4`` of ``"40%"``, ``"0.4"`` or ``0.4``; None of all else, which may be a size.

    Raises
    ------
    ValueError
        If it is a share of nothing, or of more than there is.
    """
    share: float | None = None
    if isinstance(value, str):
        match = _SHARE.fullmatch(value)
        if match is not None:
            share = float(match[1]) / 100 if match[1] else float(match[2])
    elif isinstance(value, float) and (not value.is_integer() or value == 1.0):
        share = value
    if share is not None and not 0 < share <= 1:
        raise ValueError(f"{name}={value} is neither whole bytes nor a share (0 to 1, or 0% to 100%)")
    return share


def share_of(chunks: int, share: float) -> int:
    """Whole chunks: 29 % of 100 are 29, although 0.29 times 100 is a little less."""
    return int(chunks * share + 1e-9)


def parse_speed(value: float | str, name: str = "link") -> float:
    """Bytes a second of ``6e9`` or ``"6GB/s"``.

    Raises
    ------
    ValueError
        If it is no speed, or less than that of anything that data goes through.
    """
    if isinstance(value, str):
        size = re.sub(r"/s(ec)?\s*$", "", value)
        if _SIZE.fullmatch(size) is None:
            raise ValueError(f"{name}={value!r} is not a speed; write bytes a second, or a text such as '12GB/s'")
        if _BITS.search(size):
            raise ValueError(f"{name}={value!r} may mean bits, of which a byte has eight; write bytes, as '12GB/s'")
        speed = float(parse_bytes(size, name))
    else:
        speed = float(value)
    if not 0 < speed < math.inf:
        raise ValueError(f"{name} must be positive bytes a second, got {value}")
    if speed < _SLOWEST:
        raise ValueError(f"{name}={value} is {speed:g} bytes a second; write it with a unit, as '12GB/s'")
    return speed


def format_speed(speed: float) -> str:
    """``"12GB/s"``: as :func:`parse_speed` reads it."""
    return f"{speed / 1e9:g}GB/s"


def format_bytes(count: float) -> str:
    """``"1.50 GiB"``: the unit a person reads."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < (1023.5 if unit == "B" else 1023.995):  # else it is written as 1024 of them
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1024
    return f"{count:.2f} TiB"


def format_seconds(seconds: float) -> str:
    """``"3.20 ms"``: the unit a person reads."""
    for unit, scale, digits in (("s", 1.0, 5e-6), ("ms", 1e-3, 5e-6), ("us", 1e-6, 5e-4)):
        if abs(seconds) >= scale * (1 - digits):  # else it is written as 1000 of the next
            return f"{seconds / scale:.2f} {unit}"
    return f"{seconds * 1e9:.0f} ns"
