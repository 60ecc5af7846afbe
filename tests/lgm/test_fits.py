"""Which device to choose: a row for each memory there is."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

import lgm
from lgm.fitting import GPUS, on_gpu
from lgm.fitting.fits import SIZES, by_budget, by_size, by_way, largest_batches
from lgm.iteration import analyze_lifetimes
from lgm.records.units import format_bytes, format_seconds

from .random_traces import CHUNK, training
from .test_recompute import with_calls


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


def row_of(line: str) -> list[str]:
    return re.split(r"\s{2,}", line.strip())


def test_a_row_for_each_budget_says_what_a_step_takes_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lgm.fitting.fits._SHARES", (1.0, 0.5))
    trace = with_calls(training(12, 0), 0, share=1.0)
    life, device, beside = analyze_lifetimes(trace), lgm.Device(1, CHUNK / 2e-3, CHUNK / 2e-3), 3 << 20
    head, _, *rows = by_budget(trace, device, beside).splitlines()
    assert format_bytes(beside) in head and f"{format_seconds(trace.seconds)} a step without a budget" in head
    cells = [row_of(row) for row in rows]
    assert cells[0][1:3] == ["100%", format_bytes(life.peak * CHUNK + beside)] and cells[0][4] == "1.00"
    assert cells[-1][0] == format_bytes(int(life.needed.max()) * CHUNK)
    half = lgm.analyze(trace, replace(device, budget_chunks=life.peak // 2), recompute="auto")
    assert half.remaking is not None
    made = half.recorded.tensor_bytes[half.remaking.make_tensor].sum()
    (there,) = (row for row in cells if row[0] == format_bytes(life.peak // 2 * CHUNK))
    p = half.prediction
    assert there[3:] == [
        format_seconds(p.step_seconds), f"{p.step_seconds / trace.seconds:.2f}",
        format_bytes((p.out_chunks + p.in_chunks) * CHUNK), format_bytes(made),
    ]  # fmt: skip
    slower = replace(trace, op_ns=trace.op_ns * 2)
    pressed = [row_of(row) for row in by_budget(trace, device, beside, slower).splitlines()[2:]]
    assert pressed[0] == cells[0] and float(pressed[1][4]) >= 2


def test_each_way_to_leave_has_a_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lgm.fitting.fits._MANY_SHARES", (0.9,))
    trace = with_calls(training(12, 0), 0, share=1.0)
    life, device = analyze_lifetimes(trace), lgm.Device(1, CHUNK / 2e-3, CHUNK / 2e-3)
    lines = by_way(trace, device).splitlines()
    (row,) = (row_of(line) for line in lines if " 90%" in line)
    chunks = int(life.peak * 0.9 + 1e-9)
    for cell, way in zip(row[2:], ("never", "only", "auto"), strict=True):
        plan = lgm.analyze(trace, replace(device, budget_chunks=chunks), recompute=way)  # type: ignore[arg-type]
        assert cell == f"{plan.prediction.step_seconds / trace.seconds:.3f} x", way


def test_what_cuda_and_small_tensors_take_is_no_room() -> None:
    trace, page = some_gigabytes(), 1 << 16
    room = analyze_lifetimes(on_gpu(trace, GPUS["gtx1650"], chunk_bytes=page)).peak * page
    for less, fits in ((0, True), (1, False)):
        gpu = replace(GPUS["gtx1650"], memory=room + (600 << 20) + (3 << 20) - less)
        assert (largest_batches(trace, gpu, (), trace.chunk_bytes)[0] > 0) == fits


@pytest.mark.parametrize("limit", [1.3, 2.0])
def test_a_larger_batch_costs_a_sample_no_more_than_it_may(limit: float) -> None:
    trace = with_calls(some_gigabytes(), 0, share=1.0)
    gpu = replace(GPUS["gtx1650"], memory=2 << 30)
    _, found = largest_batches(trace, gpu, (limit,), trace.chunk_bytes)
    assert found > 0
    there = on_gpu(trace, gpu, batch=found, chunk_bytes=trace.chunk_bytes)
    room = gpu.memory - (600 << 20) - (3 << 20)
    plan = lgm.analyze(there, lgm.Device(room // there.chunk_bytes, gpu.link, gpu.link), recompute="auto")
    assert plan.prediction.step_seconds <= limit * there.seconds
