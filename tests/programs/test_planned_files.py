"""Traces and plans as files: what was recorded, followed from the start, refused where it does not fit."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lgm
import vtensor
from lgm.fitting import GPUS, on_gpu
from lgm.iteration import analyze_lifetimes
from vtensor import native
from vtensor.planning.recordings import make_recording

from ..identity import PAGE, same, seeded
from .planned import WIDTH, Trainer


def save_trace(path: Path, rows: int = 64) -> None:
    vtensor.record()
    trainer = Trainer()
    for _ in range(4):
        trainer.step(rows)
    vtensor.save_trace(path, model="net")


@pytest.fixture
def trace(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "trace.npz"
    with vtensor.enabled(1 << 28, chunk=PAGE, min_size=1):
        save_trace(path)
    yield path


def test_a_trace_is_what_happened(trace: Path) -> None:
    read = lgm.load_trace(trace)
    assert read.meta["model"] == "net"
    assert read.meta["torch"] == torch.__version__
    assert any("addmm" in name for name in read.names)
    lasting = (read.tensor_born < 0) & (read.tensor_died < 0)
    assert lasting.sum() >= 6 * 2 * 3  # weights and biases, each with two states
    wraps = (read.tensor_died >= 0) & (read.tensor_died < read.tensor_born)
    assert wraps.sum() >= 6 * 2  # gradients live until zero_grad of the next iteration


def test_a_trace_knows_what_it_would_take_on_a_gpu(trace: Path) -> None:
    read = lgm.load_trace(trace)
    there = on_gpu(read, GPUS["h100"])
    assert 0 < there.seconds < read.seconds


def test_what_an_operation_frees_before_it_allocates_is_not_held_twice() -> None:
    # The backward of a convolution frees what it unfolded before it makes the next gradient.
    net = nn.Sequential(*[nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU()) for _ in range(4)])
    with vtensor.enabled(1 << 28, chunk=PAGE, min_size=1):
        vtensor.record()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(4):
            vtensor.reset_peak_memory_stats()
            optimizer.zero_grad()
            net(torch.randn(4, 8, 40, 40)).square().mean().backward()
            optimizer.step()
        raw = native.load().recorded_iteration()
        peak = lgm.iteration.analyze_lifetimes(make_recording(raw, PAGE).trace).peak
        assert peak * PAGE == vtensor.memory_stats()["used_bytes.peak"]


def recorded(*pauses: float) -> list[dict[str, Any]]:
    """The same iteration, with something else to wait for, over and over; what is known of each."""
    with vtensor.enabled(1 << 28, chunk=PAGE, min_size=1, policy="lru"):
        vtensor.record()
        known = []
        for pause in pauses:
            x = torch.randn(WIDTH, WIDTH)
            for _ in range(8):
                x = x * 1.01
            time.sleep(pause)
            vtensor.step()
            known.append(native.load().recorded_iteration())
    return known


def test_rows_have_the_times_of_the_quickest_and_an_iteration_its_own() -> None:
    *_, quick, slow = recorded(0, 0, 0, 0.05)
    assert slow["took"] >= 0.05e9 > quick["took"] > 0
    assert slow["end"] - slow["op_begin"][0] <= quick["took"]


def test_whoever_records_knows_how_long_each_iteration_took_on_an_ordered_device(late: bool) -> None:
    first, *others = recorded(0, 0, 0, 0, 0)
    assert first["took"] == 0  # nobody had asked when it began: its times are those of the thread
    assert all(each["took"] > 0 for each in others)


@pytest.mark.parametrize("rows", [64, 8], ids=["activations", "weights"])
def test_a_plan_from_a_file_is_followed_from_the_start(rows: int, tmp_path: Path) -> None:
    trace = tmp_path / "trace.npz"
    settings = {"chunk": PAGE, "min_size": 2 * PAGE}  # no biases: all that lasts is of one size
    with vtensor.enabled(1 << 28, **settings):
        save_trace(trace, rows)
    read = lgm.load_trace(trace)
    path = tmp_path / "plan.npz"
    peak = int(lgm.iteration.analyze_lifetimes(read).peak)
    plan = lgm.analyze(read, lgm.Device(peak // 2, 1e9, 1e9))
    lgm.save_plan(plan, path)

    arrived: list[int] = []

    def whole() -> list[Any]:
        trainer = Trainer()
        for _ in range(16):
            trainer.step(rows)
            if vtensor.is_enabled():
                stats = vtensor.memory_stats()
                brought = stats["timely_arrivals"] + stats["late_arrivals"]
                arrived.append(brought + stats["cancels"])  # still leaving when it is to come back: it stays
        return trainer.result()

    expected = seeded(whole)
    with vtensor.enabled(peak // 2 * PAGE, **settings, plan=path, link="1GB/s"):
        got = seeded(whole)
        stats = vtensor.memory_stats()
    assert same(got, expected)
    assert stats["planned_iterations"] >= 5, stats
    # Gradients and states have the sizes of their weights; from the third iteration on all are told apart.
    # On a busy machine some iterations begin one or two fewer (the same bytes come in); none begins more.
    assert max(after - before for before, after in itertools.pairwise(arrived[3:])) == plan.prediction.in_chunks


def test_plans_that_do_not_fit_are_refused(trace: Path, tmp_path: Path) -> None:
    plan = lgm.analyze(lgm.load_trace(trace), lgm.Device(200, 1e9, 1e9))
    path = tmp_path / "plan.npz"
    lgm.save_plan(plan, path)
    for options, words in (
        ({"budget": 199 * PAGE, "chunk": PAGE}, "was made for a budget"),
        ({"budget": 1 << 28, "chunk": 2 * PAGE}, "was made for chunks"),
        ({"budget": 1 << 28, "chunk": PAGE, "policy": "lru"}, "contradict"),
    ):
        with pytest.raises(vtensor.ConfigError, match=words):
            vtensor.enable(plan=path, **options)
        assert not vtensor.is_enabled()
    tight = lgm.Device(analyze_lifetimes(plan.trace).peak * 9 // 10, 1e9, 1e9)
    for made, asked, words in (
        ("never", "only", "copies, and recompute='only' copies nothing"),
        ("only", "never", "makes things again, and recompute='never' does not"),
    ):
        lgm.save_plan(lgm.analyze(plan.trace, tight, recompute=made), path)
        with pytest.raises(vtensor.ConfigError, match=words):
            vtensor.enable(tight.budget_chunks * PAGE, chunk=PAGE, recompute=asked, plan=path)
    with pytest.raises(vtensor.ConfigError, match="not a plan"):
        vtensor.enable(1 << 28, chunk=PAGE, plan=trace)


def test_chunks_are_as_large_as_the_plan_says(trace: Path, tmp_path: Path) -> None:
    lgm.save_plan(lgm.analyze(lgm.load_trace(trace), lgm.Device(200, 1e9, 1e9)), tmp_path / "plan.npz")
    with vtensor.enabled("4GiB", device="cpu", plan=tmp_path / "plan.npz"):
        assert vtensor.memory_stats()["chunk_bytes"] == PAGE


def test_a_plan_that_cannot_be_installed_leaves_nothing_behind(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan.npz"
    lgm.save_plan(lgm.analyze(lgm.load_trace(trace), lgm.Device(200, 1e9, 1e9)), path)

    def refuse(*_given: Any) -> None:
        raise RuntimeError("refused")

    monkeypatch.setattr("vtensor.planning.current_planner.install", refuse)
    with pytest.raises(RuntimeError, match="refused"):
        vtensor.enable(200 * PAGE, chunk=PAGE, plan=path)
    assert not vtensor.is_enabled()
    monkeypatch.undo()
    with vtensor.enabled(200 * PAGE, chunk=PAGE, plan=path):
        assert vtensor.is_enabled()


def test_nothing_recorded_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(vtensor.NotEnabledError):
        vtensor.save_trace(tmp_path / "t.npz")
    with vtensor.enabled(1 << 28), pytest.raises(RuntimeError, match=r"call vtensor\.record"):
        vtensor.save_trace(tmp_path / "t.npz")
    vtensor.step()  # not enabled: does nothing
