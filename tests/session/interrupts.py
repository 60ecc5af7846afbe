"""Exceptions at chosen points of a call.

A trace function raises ``KeyboardInterrupt`` where Ctrl-C could, and where it could not, as Python looks for signals at
few of these points.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import vtensor

PACKAGE = str(Path(vtensor.__file__).parent)


@dataclass(frozen=True)
class Point:
    """An event of a trace: the `nth` of its kind at an instruction of a function, counted from 1."""

    code: CodeType
    event: str
    instruction: int
    line: int
    nth: int

    def __str__(self) -> str:
        text = linecache.getline(self.code.co_filename, self.line).strip()
        where = f"{Path(self.code.co_filename).name}:{self.line} in {self.code.co_name}"
        return f"{where}, {self.event} {self.instruction}, time {self.nth}: {text}"

    @property
    def file(self) -> str:
        return Path(self.code.co_filename).name


def points_of(action: Callable[[], Any]) -> list[Point]:
    """Every event inside the package while `action` runs: calls, lines, instructions, returns."""
    seen: dict[tuple[CodeType, str, int], int] = {}
    found = []

    def note(frame: FrameType, event: str, _argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes = True
        key = frame.f_code, event, frame.f_lasti
        seen[key] = seen.get(key, 0) + 1
        found.append(Point(*key, frame.f_lineno or frame.f_code.co_firstlineno, seen[key]))
        return note

    sys.settrace(note)
    try:
        action()
    finally:
        sys.settrace(None)
    return [point for point in found if point.event != "exception"]


def interrupted(action: Callable[[], Any], at: Point) -> bool:
    """Run `action` with an exception raised at a point; whether it came by there."""
    left = at.nth

    def count(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal left
        if frame.f_code is not at.code:
            return None
        frame.f_trace_opcodes = at.event == "opcode"
        if event == at.event and frame.f_lasti == at.instruction:
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return count

    sys.settrace(count)
    try:
        action()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    return left <= 0


def thinned(points: list[Point]) -> list[Point]:
    """Of a loop, the first two and the last two turns; of checking arguments, which changes nothing, every tenth."""
    last: dict[tuple[CodeType, str, int], int] = {}
    for point in points:
        last[point.code, point.event, point.instruction] = point.nth
    few = [p for p in points if p.nth <= 2 or p.nth > last[p.code, p.event, p.instruction] - 2]
    dull = [p for p in few if p.file in ("config.py", "math_library.py")]
    return [p for p in few if p.file not in ("config.py", "math_library.py")] + dull[::10]
