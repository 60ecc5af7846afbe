"""The types of the native core are those of the core as it is built."""

from __future__ import annotations

from typing import Protocol

import vtensor
from vtensor import native
from vtensor.native import core as types


def members(protocol: type) -> set[str]:
    own = {name for name in vars(protocol) if not name.startswith("_")}
    return own | set(getattr(protocol, "__annotations__", {}))


def test_every_function_has_a_type() -> None:
    core = native.load()
    rooms = [room for room in types.Core.__mro__ if room not in (types.Core, Protocol, object)]
    typed = {name for room in rooms if room.__name__ not in ("_Cuda", "Generic") for name in members(room)}
    if hasattr(core, "probe_cuda"):
        typed |= members(types._Cuda)
    assert {name for name in dir(core) if not name.startswith("_")} == typed


def test_figures_have_the_keys_that_are_promised() -> None:
    with vtensor.enabled("16MiB", device="cpu"):
        core = native.load()
        for got, promised in (
            (core.snapshot(), types.Snapshot),
            (core.snapshot()["handles"], types.Handles),
            (core.snapshot()["tensor_bytes"], types.Amount),
            (core.unmanaged(), types.Amount),
            (core.plan_counters(), types.PlanCounters),
            (core.recorded_iteration(), types.RawIteration),
        ):
            assert set(got) == set(promised.__annotations__)
