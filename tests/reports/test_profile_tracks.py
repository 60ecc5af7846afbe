"""Copies and makings beside the operations of ``torch.profiler``."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import vtensor
from vtensor import planning


def train(steps: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*[part for _ in range(6) for part in (nn.Linear(256, 256), nn.GELU(), nn.Tanh())])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(256, 256)).sum().backward()
        optimizer.step()
        planning.wait_for_plan()


def profiled(path: Path, budget: str = "2MiB", **options: Any) -> tuple[int, list[dict[str, Any]]]:
    with vtensor.enabled(budget, chunk=4096, min_size=4096, host="256MiB", **options):
        train(1)  # of another time
        with torch.profiler.profile() as profile, vtensor.tracks() as tracks:
            train(6)
        train(1)
    profile.export_chrome_trace(str(path))
    added = tracks.add_to(path)
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    events: list[dict[str, Any]] = json.loads(text)["traceEvents"]
    return added, events


def test_copies_lie_within_the_steps_they_belong_to(tmp_path: Path) -> None:
    added, events = profiled(tmp_path / "profile.json", link="400MB/s", recompute="never")
    ours = [each for each in events if each.get("cat") == "vtensor"]
    assert added == len(ours) > 0
    assert {each["tid"] for each in ours} == {"copies out", "copies in"}
    assert {each["args"]["bytes"] for each in ours} == {4096}
    operations = [each for each in events if each.get("cat") == "cpu_op" and each["name"].startswith("aten::")]
    first, last = min(each["ts"] for each in operations), max(each["ts"] + each["dur"] for each in operations)
    inside = [each for each in ours if first - 1e4 <= each["ts"] <= last + 1e4]
    assert len(inside) > 0.9 * len(ours)
    # A link carries one at a time: bars of a track do not lie over each other.
    for lane in ("copies out", "copies in"):
        bars = sorted((each["ts"], each["dur"]) for each in ours if each["tid"] == lane)
        assert all(bars[k][0] <= bars[k + 1][0] for k in range(len(bars) - 1))


def test_what_is_made_again(tmp_path: Path) -> None:
    _, events = profiled(tmp_path / "profile.json.gz", "4MiB", recompute="only")  # which a plan holds
    made = [each for each in events if each.get("tid") == "recomputed"]
    assert made and all(each["dur"] > 0 for each in made)


def test_several_in_one_profile_each_have_their_time(tmp_path: Path) -> None:
    path = str(tmp_path / "profile.json")
    with vtensor.enabled("2MiB", chunk=4096, min_size=4096, host="256MiB", recompute="never"):
        with torch.profiler.profile() as profile:
            with vtensor.tracks() as first:
                train(3)
            with vtensor.tracks() as second:
                train(3)
        profile.export_chrome_trace(path)
        events = json.loads(Path(path).read_bytes())["traceEvents"]
        begins = sorted(each["ts"] for each in events if each.get("name", "").startswith("vtensor: iteration"))
        first.add_to(path)
    ours = [each["ts"] for each in json.loads(Path(path).read_bytes())["traceEvents"] if each.get("cat") == "vtensor"]
    assert second.spans and ours
    assert begins[0] - 1e4 < min(ours) and max(ours) < begins[len(begins) // 2] + 1e4


def test_there_is_one_log() -> None:
    with vtensor.enabled("64MiB"):
        with vtensor.tracks(), pytest.raises(vtensor.ConfigError, match=r"another .* is open"), vtensor.tracks():
            pass
        with vtensor.tracks():
            pass


def test_a_profile_of_another_time_is_refused(tmp_path: Path) -> None:
    with vtensor.enabled("64MiB"):
        with vtensor.tracks() as tracks:
            torch.ones(8)
        with torch.profiler.profile() as profile:
            torch.ones(8)
    profile.export_chrome_trace(str(tmp_path / "other.json"))
    before = (tmp_path / "other.json").read_bytes()
    with pytest.raises(vtensor.ConfigError, match="of another time"):
        tracks.add_to(tmp_path / "other.json")
    assert (tmp_path / "other.json").read_bytes() == before
    (tmp_path / "notes.txt").write_text("none")
    with pytest.raises(vtensor.ConfigError, match="not a trace"):
        tracks.add_to(tmp_path / "notes.txt")


def test_without_a_session() -> None:
    with pytest.raises(vtensor.NotEnabledError), vtensor.tracks():
        pass
