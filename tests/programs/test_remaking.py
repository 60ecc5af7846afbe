"""What was dropped is made again, bit for bit: torch's own operators, and what programs do around it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import vtensor
from vtensor import native

from ..identity import same
from .test_operators import BUDGET, CHUNK, cases, run

SETTINGS: dict[str, Any] = {"chunk": CHUNK, "min_size": 1, "host": "64MiB", "policy": "lru"}


def dropping() -> Callable[[], None]:
    """A function that drops all that can be made again; the rest leaves by a copy."""
    core = native.load()

    def drop_everything() -> None:
        core.drop_all()
        core.evict_all()

    return drop_everything


def check(samples: int, *, every_way: bool) -> None:
    core, drop_everything = native.load(), dropping()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = cases(samples, every_way)
        with vtensor.enabled(BUDGET * CHUNK, **SETTINGS):
            core.observe()
            core.see("all")
            wrong = [
                case.name for case in found if not same(run(case.call, case.given, drop_everything), case.expected)
            ]
            assert core.validate() == ""
            stats = vtensor.memory_stats()
            assert stats["drops"] > len(found)
            assert stats["made_bytes"] > 0
    assert wrong == []


def test_every_operator_is_made_again() -> None:
    check(samples=1, every_way=True)


def test_every_operator_is_made_again_on_an_ordered_device(late: bool) -> None:
    check(samples=1, every_way=False)


def test_every_operator_verified() -> None:
    core = native.load()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = cases(1, True)
        with vtensor.enabled(BUDGET * CHUNK, **SETTINGS):
            core.observe()
            core.see("all", verify=True)
            for case in found:
                run(case.call, case.given, lambda: None)
    verified = core.verified()
    assert [name for name, _, different, _, _ in verified if different > 0] == []
    never = {name: why for name, alike, _, _, why in verified if alike == 0 and why}
    print(len(verified), never)
