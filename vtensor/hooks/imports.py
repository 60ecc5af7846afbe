"""Modules that are looked at when they are imported, as most programs never do.

Covers: one finder, which stays for good; what a session wishes done with a module, now or when it comes.
Leaves: what is done (``compiled``, ``foreach``, ``storages``).
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from .patches import replace

__all__ = ["when_imported"]

_wishes: dict[str, Callable[[ModuleType], None]] = {}  # of the session that is there
_looking: set[str] = set()


class _Finder(importlib.abc.MetaPathFinder):
    """Finds such a module as others do; if a session is there when it is imported, it is told."""

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> ModuleSpec | None:
        if name not in _wishes or name in _looking:
            return None
        _looking.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            _looking.discard(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_tell(module: ModuleType) -> None:
                execute(module)
                act = _wishes.get(name) if module.__name__ == name else None  # some loaders have many modules
                if act is not None:
                    act(module)

            spec.loader.exec_module = execute_and_tell  # type: ignore[method-assign]
        return spec


_finder = _Finder()


def when_imported(name: str, act: Callable[[ModuleType], None]) -> None:
    """Do it with the module of that name when it is imported; now, if it is. Until :func:`.patches.restore`."""
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    replace(sys.modules[__name__], "_wishes", {**_wishes, name: act})
    if (imported := sys.modules.get(name)) is not None:
        act(imported)
