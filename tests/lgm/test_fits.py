"""Which device to choose: a row for each memory there is."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

import lgm
from lgm.fitting import GPUS
from lgm.fitting.fits import SIZES, by_size, largest_batches

from .random_traces import training


def some_gigabytes() -> lgm.Trace:
    trace = training(4)
    trace = replace(
        trace, chunk_bytes=trace.chunk_bytes << 10, tensor_bytes=trace.tensor_bytes << 10,
        meta={"flop_per_second": 1e11, "unmanaged_bytes": 3 << 20},
    )  # fmt: skip
    scale = (3 << 30) // int(trace.tensor_bytes.sum()) or 1
    return replace(trace, chunk_bytes=trace.chunk_bytes * scale, tensor_bytes=trace.tensor_bytes * scale)


@pytest.mark.parametrize("name", ["gtx1650", "jetson-orin"])
def test_more_memory_larger_batches(name: str) -> None:
    text = by_size(some_gigabytes(), GPUS[name])
    assert "3.00 MiB of small tensors taken off" in text
    rows = re.findall(r"^ +(\d+) GiB +(\S+ \S+) .* (-|\d+ x (?:as recorded|and more))( +<- this device)?$", text, re.M)
    assert [int(row[0]) for row in rows] == sorted({*SIZES, GPUS[name].memory >> 30})
    assert rows[0][1] == "3.41 GiB"
    batches = [0 if row[2] == "-" else int(row[2].split()[0]) for row in rows]
    assert batches == sorted(batches)
    assert batches[-1] > 1
    assert [bool(row[3]) for row in rows].index(True) == [int(row[0]) for row in rows].index(GPUS[name].memory >> 30)


def test_who_may_take_longer_trains_more() -> None:
    trace = some_gigabytes()
    small = replace(GPUS["gtx1650"], memory=2 << 30)
    plain, *planned = largest_batches(trace, small, (1.05, 2.0, 20.0), trace.chunk_bytes)
    assert planned == sorted(planned)
    assert plain < planned[-1] <= 64
    more = largest_batches(trace, GPUS["gtx1650"], (1.05,), trace.chunk_bytes)
    assert more[0] > plain
    none = replace(small, memory=1 << 20)
    assert largest_batches(trace, none, (1.1,), trace.chunk_bytes) == (0, 0)
