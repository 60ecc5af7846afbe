"""The command ``lgm``, as a person types it; and that it needs NumPy alone (B7)."""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lgm
import lgm.fitting.fits
from lgm.command import target
from lgm.command.cli import main
from lgm.iteration import analyze_lifetimes
from lgm.progress import Bar
from lgm.records import HOST_COSTS
from lgm.records.units import (
    format_bytes,
    format_seconds,
    format_speed,
    parse_bytes,
    parse_share,
    parse_speed,
    share_of,
)
from lgm.reports.report import draw

from .random_traces import CHUNK, training
from .test_recompute import with_calls

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.npz"
    lgm.save_trace(training(8), path)
    return str(path)


@pytest.fixture
def plan(trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    path = str(tmp_path / "plan.npz")
    assert main(["analyze", trace, "--budget", "0.5", "--link", "2MB/s", "-o", path]) == 0
    assert "no plan beats" in capsys.readouterr().out
    return path


def test_analyze_validate_show(plan: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", plan]) == 0
    assert main(["show", plan, "--graph", "5"]) == 0
    text = capsys.readouterr().out
    assert "swapped-by edges" in text
    assert "longest operation" in text


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_picture(plan: str, tmp_path: Path, ending: str) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / f"plan.{ending}"
    assert main(["show", plan, "--picture", str(picture)]) == 0
    assert picture.stat().st_size > 5000


def test_a_picture_shows_what_there_would_be_without_a_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where much of it is dropped, and recomputed."""
    axes = pytest.importorskip("matplotlib.axes").Axes
    recorded = with_calls(training(12, 0), 0, share=1.0)
    peak = analyze_lifetimes(recorded).peak
    made = lgm.analyze(recorded, lgm.Device(int(peak * 0.55), CHUNK / 2e-3, CHUNK / 2e-3), recompute="auto")
    assert made.remaking is not None and analyze_lifetimes(made.trace).peak < peak
    drawn: dict[str, float] = {}
    step = axes.step

    def noted(self: Any, x: Any, y: Any, **more: Any) -> Any:
        drawn[more["label"]] = max(y)
        return step(self, x, y, **more)

    monkeypatch.setattr(axes, "step", noted)
    draw(made, tmp_path / "plan.png")
    assert drawn["all live tensors (no budget)"] == pytest.approx(peak * CHUNK / 2**20)


def test_perfetto(plan: str, tmp_path: Path) -> None:
    out = tmp_path / "p.json"
    assert main(["perfetto", plan, "-o", str(out)]) == 0
    events = json.loads(out.read_text())["traceEvents"]
    assert {e["tid"] for e in events if e["ph"] == "X"} == {1, 2, 3}
    assert all(e["dur"] >= 0 for e in events if e["ph"] == "X")


def test_show_simulate_and_fit_a_trace(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", trace]) == 0
    assert "smallest budget" in capsys.readouterr().out
    assert main(["simulate", trace, "--budget", "0.5", "--link", "2MB/s"]) == 0
    assert "on demand, whole tensors" in capsys.readouterr().out
    assert main(["fit", trace, "--link", "2MB/s"]) == 0
    told = capsys.readouterr().out
    assert "recomputed only" in told and "100%" not in told


def test_fit_says_what_it_assumes_and_takes_what_it_is_given(
    trace: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lgm.fitting.fits, "SIZES", ())  # the GPU's own memory alone
    for shares in ("_SHARES", "_MANY_SHARES"):
        monkeypatch.setattr(lgm.fitting.fits, shares, (0.5,))
    for speeds, assumed in ((["--link-in", "2MB/s"], True), (["--link-in", "2MB/s", "--link-out", "1MB/s"], False)):
        assert main(["fit", trace, *speeds]) == 0
        assert ("assumed: copies at 12GB/s out (" in capsys.readouterr().out) == assumed
    recorded = str(ROOT / "traces" / "unet.npz")
    tables = []
    for more in ([], ["--link", "3GB/s"], ["--batch", "2"]):
        assert main(["fit", recorded, "--gpu", "gtx1650", *more]) == 0
        tables.append(capsys.readouterr().out.partition("with other memories")[2])
    assert tables[0] and tables[1] and tables[0] != tables[1]
    assert not tables[2]


def test_on_a_device_of_one_memory_nothing_is_copied(tmp_path: Path) -> None:
    plan = tmp_path / "plan.npz"
    arguments = ["analyze", str(ROOT / "traces" / "unet.npz"), "--gpu", "jetson-orin", "--budget", "70%"]
    assert main([*arguments, "-o", str(plan)]) == 0
    made = lgm.load_plan(plan)
    assert made.prediction.out_chunks == made.prediction.in_chunks == 0 and made.remaking is not None


def test_every_heuristic_has_an_option_that_says_what_it_may_be(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["analyze", "--help"])
    told = capsys.readouterr().out
    for name, choices in lgm.Switches.choices().items():
        assert f"--{name} {{{','.join(choices)}}}" in told
        assert getattr(lgm.Switches(), name) == choices[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["analyze", "{trace}", "--budget", "1KiB"], "smallest budget that works"),
        (["analyze", "{trace}", "--budget", "4"], "--budget 4 holds not one chunk of"),
        (["analyze", "{recorded}", "--budget", "50%", "--gpu", "h100", "--device", "host"], "--device host means"),
        (["simulate", "{recorded}", "--budget", "50%", "--gpu", "jetson-orin"], "has one memory"),
        (
            ["analyze", "{recorded}", "--budget", "50%", "--gpu", "jetson-orin", "--recompute", "auto"],
            "copying frees nothing there",
        ),
        (
            ["analyze", "{recorded}", "--budget", "50%", "--gpu", "jetson-orin", "--link", "6GB/s"],
            "it shares the processor's memory, so nothing is copied",
        ),
        (["analyze", "{trace}", "--budget", "0.5", "--link", "100Gb/s"], "may mean bits"),
        (["fit", "{trace}", "--batch", "2"], "--batch and --numbers need --gpu"),
        (["fit", "{trace}", "--link-out", "fast"], "--link-out="),
        (["harmony", "{recorded}", "--samples", "1", "--budget", "many"], "--budget="),
        (
            ["harmony", "{recorded}", "--samples", "4", "--minibatch", "0", "--budget", "1GiB"],
            "--minibatch 0: at least 1",
        ),
        (
            ["harmony", "{recorded}", "--samples", "4", "--budget", "1GiB", "--numbers", "bf16"],
            "what --gpu computes in",
        ),
        (
            ["harmony", "{recorded}", "--samples", "4", "--budget", "1GiB", "-o", "nowhere/x.json"],
            "there is no such folder",
        ),
        (["analyze", "{trace}", "--budget", "many"], "not a size"),
        (["analyze", "{trace}", "--budget", "0.5", "--link", "fast"], "not a speed"),
        (["analyze", "nowhere.npz", "--budget", "0.5"], "no such file"),
        (["show", str(ROOT)], "a directory; name a file"),
        (["analyze", "{trace}", "--budget", "0.5", "--link", "2MB/s", "-o", str(ROOT)], "a directory; name a file"),
        (["validate", "{trace}"], "this is a trace, not a plan"),
        (["show", "{trace}", "--picture", "x.png"], "needs a plan"),
    ],
)
def test_bad_input_is_one_clear_line(
    trace: str, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([a.format(trace=trace, recorded=ROOT / "traces" / "unet.npz") for a in arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("lgm: ")
    assert words in error
    assert error.count("\n") == 1


def test_lines_are_counted(plan: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["show", plan, "--rows", "-1"])
    assert "-1 lines cannot be shown" in capsys.readouterr().err


@pytest.mark.parametrize("closed", [True, False])
def test_nobody_looks_on_where_stderr_is_closed(closed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    stream.close()
    monkeypatch.setattr("sys.stderr", stream if closed else None)
    Bar()("working", 0.5)


def test_units() -> None:
    assert parse_bytes("1.5 KiB") == 1536
    assert parse_speed("6GB/s") == 6e9 == parse_speed(format_speed(6e9))
    for bad in ("1", 12, "500B/s"):
        with pytest.raises(ValueError, match="write it with a unit"):
            parse_speed(bad)
    assert [parse_share(text) for text in ("40%", " .5 ", 0.25, "1.0", "100 %")] == [0.4, 0.5, 0.25, 1.0, 1.0]
    assert [parse_share(size) for size in ("4GiB", "1", 3.0, "40")] == [None] * 4
    for bad in ("0%", "101%", 1.5, -0.5):
        with pytest.raises(ValueError, match="is neither whole bytes nor a share"):
            parse_share(bad)
    assert [share_of(100, share) for share in (0.28, 0.29, 0.57, 1.0)] == [28, 29, 57, 100]
    with pytest.raises(ValueError, match="larger than any memory"):
        parse_bytes("1e400")
    assert format_bytes((1 << 20) - 1) == "1.00 MiB" and format_seconds(0.9999999e-3) == "1.00 ms"
    assert format_bytes(3 << 20) == "3.00 MiB"
    assert [format_seconds(s) for s in (2.0, 0.0032, 4e-6, 5e-9)] == ["2.00 s", "3.20 ms", "4.00 us", "5 ns"]
    for bad in ("x", "-1", 0, True, None, "1.5", 1 << 70, f"{10**30}TiB"):
        with pytest.raises(ValueError, match="size"):
            parse_bytes(bad, "size")  # type: ignore[arg-type]


_ALONE = """
import sys
class Only:
    def find_spec(self, name, path=None, target=None):
        top = name.split('.')[0]
        if top not in sys.stdlib_module_names and top not in ('numpy', 'lgm'):
            raise ImportError(f'{name} is not part of NumPy or the standard library')
sys.meta_path.insert(0, Only())
sys.path[:] = [p for p in sys.path]
from lgm.command.cli import main
from lgm.progress import Bar
sys.exit(main(sys.argv[1:]))
"""


def test_lgm_needs_numpy_alone(trace: str, tmp_path: Path) -> None:
    plan = str(tmp_path / "alone.npz")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    for arguments in (
        ["analyze", trace, "--budget", "0.5", "--link", "2MB/s", "-o", plan],
        ["validate", plan],
        ["show", plan],
        ["perfetto", plan, "-o", str(tmp_path / "x.json")],
    ):
        done = subprocess.run(
            [sys.executable, "-c", _ALONE, *arguments], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


def test_a_damaged_plan_is_called_damaged(trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.npz"
    assert main(["analyze", trace, "--budget", "0.5", "--link", "2MB/s", "-o", str(plan)]) == 0
    with np.load(plan) as file:
        arrays = {name: file[name] for name in file.files if name != "in_need"}
    np.savez(plan, **arrays)
    assert main(["show", str(plan)]) == 2
    assert "damaged" in capsys.readouterr().err


def test_speeds_and_costs_are_those_that_were_asked_for() -> None:
    target.add_options(parser := argparse.ArgumentParser())
    asked = ["--link", "9MB/s", "--link-out", "1MB/s", "--latency", "0.001", "--tax", "1e-9", "--device", "host"]
    device = target.device_of(parser.parse_args(asked), training(4))
    assert (device.out_speed, device.in_speed, device.latency, device.tax) == (1e6, 9e6, 1e-3, 1e-9)
    assert {"switch": device.switch, "jitter": device.jitter} == HOST_COSTS
