"""The device that plans are made for is the one that the last iteration found."""

from __future__ import annotations

import pytest

from lgm.records import ASSUMED_LINK, HOST_COSTS
from vtensor.planning.speeds import found_device
from vtensor.settings.available import processors
from vtensor.settings.config import make_config
from vtensor.settings.options import Options

MIB = 1 << 20


def test_a_device_is_as_fast_as_the_last_iteration_found_it() -> None:
    config = make_config("64MiB", Options(device="cpu", chunk="1MiB"))
    before = {
        "moved_out_bytes": 512 * MIB,
        "moved_in_bytes": 512 * MIB,
        "out_ns": 9e9,
        "in_ns": 9e9,
        "processor_ns": 5e9,
    }
    before |= {"wait_ns": 3e9, "make_ns": 2e9, "moves_in_wait": True}
    spent = {
        "moved_out_bytes": 32 * MIB,
        "moved_in_bytes": 64 * MIB,
        "out_ns": 32e6,
        "in_ns": 32e6,
        "processor_ns": 48e6,
    }
    spent |= {"wait_ns": 10e6, "make_ns": 5e6}
    now = before | {name: before[name] + of for name, of in spent.items()}
    device = found_device(config, before, now, stalls=39e-3)
    assert device.budget_chunks == 64
    assert (device.out_speed, device.in_speed) == pytest.approx((1000 * MIB, 2000 * MIB))
    assert device.tax == pytest.approx(48e-3 / (96 * MIB) / processors())
    assert device.switch == pytest.approx((39 - 10 - 5) * 1e-3 / 96)
    assert found_device(config, before, now, stalls=15e-3).switch == HOST_COSTS["switch"]
    few = found_device(config, before, before | {"moved_in_bytes": 527 * MIB, "in_ns": 10e9})
    assert (few.out_speed, few.in_speed) == (ASSUMED_LINK, ASSUMED_LINK)
    slow = make_config("64MiB", Options(device="cpu", chunk="1MiB", link="1GB/s"))
    assert found_device(slow, before, before).out_speed == 1e9
