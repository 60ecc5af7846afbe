"""Exceptions at every point at which a session on a GPU starts and stops, over a stand-in for the core and its pool."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from vtensor.devices import gpu
from vtensor.settings.config import make_config
from vtensor.settings.options import Options

from ..session.interrupts import interrupted, points_of

PAGE = 4096


class FakeGpu:
    """A core and the pool its chunks come from."""

    running = closed = False
    trimmed: int | None = None  # chunks that were lent then
    InvalidUse, OutOfMemory = ValueError, MemoryError

    def __init__(self, *, tensors_live: bool) -> None:
        self.tensors_live = tensors_live

    def start_cuda(self, **_settings: Any) -> None:
        self.running = True

    def stop_cuda(self) -> tuple[bool, list[int]]:
        was, self.running = self.running, False
        drained = not (was and self.tensors_live)  # the second time it does not know any more
        return drained, self.lent[1:] if was else []

    def lend(self, chunks: int) -> list[int]:
        self.lent = [PAGE * k for k in range(1, chunks + 1)]
        return list(self.lent)

    def take_back(self, addresses: list[int]) -> None:
        self.lent = [address for address in self.lent if address not in addresses]

    def trim(self) -> None:
        self.trimmed = len(self.lent)

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("tensors_live", [False, True])
@pytest.mark.parametrize("multithreaded", [False, True])
def test_a_gpu_is_given_back(tensors_live: bool, multithreaded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(1 << 20, Options(chunk=PAGE))
    core: Any = None

    def fresh(*, live: bool) -> None:
        nonlocal core
        core = FakeGpu(tensors_live=live)
        monkeypatch.setattr(gpu, "make_device_pool", lambda *_: core)
        monkeypatch.setattr(gpu, "_kept", [])

    def start() -> None:
        gpu.start(core, config)

    def stop() -> None:
        gpu.stop(core)

    def stop_and_look(at: object) -> None:
        stop()
        assert not core.running and gpu._pool is None, at
        assert not (core.closed and core.tensors_live), f"tensors lost their memory after {at}"
        assert torch.autograd.is_multithreading_enabled() == multithreaded, at

    torch.autograd.set_multithreading_enabled(multithreaded)
    try:
        fresh(live=tensors_live)
        starts, stops = points_of(start), points_of(stop)
        assert core.closed != tensors_live
        assert core.trimmed == (1 if tensors_live else None), "the device has back what no tensor uses"
        for point in starts:
            fresh(live=False)
            assert interrupted(start, point)
            stop_and_look(point)
            assert not gpu._kept, point
        for point in stops:
            fresh(live=tensors_live)
            start()
            assert interrupted(stop, point)
            stop_and_look(point)
    finally:
        torch.autograd.set_multithreading_enabled(True)
    print(f"gpu: {len(starts)} points of a start, {len(stops)} of a stop")
