"""The page of a trace or a plan, and what its tensors are said to be for."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

import lgm
from lgm.command.cli import main
from lgm.iteration import analyze_lifetimes
from lgm.iteration.roles import ROLES, roles_of
from lgm.reports.snapshot import snapshot

from .random_traces import CHUNK, build, lawless

TRACES = Path(__file__).resolve().parents[2] / "traces"


@pytest.mark.parametrize("seed", range(20))
def test_every_byte_has_one_role_at_every_moment(seed: int) -> None:
    trace = lawless(seed)
    over_time = roles_of(trace).bytes_over_time(trace)
    assert (over_time.sum(axis=0) == analyze_lifetimes(trace).live * trace.chunk_bytes).all()


@pytest.mark.parametrize(("name", "weights"), [("gpt2", 98), ("resnet50", 90), ("bert", 418)])
def test_what_real_models_hold(name: str, weights: int) -> None:
    """Weights as the model counts them (in MiB, without padding); gradients as many, AdamW's states twice."""
    trace = lgm.load_trace(TRACES / f"{name}.npz")
    roles = roles_of(trace)
    total = [int(trace.tensor_bytes[roles.role == k].sum()) >> 20 for k in range(len(ROLES))]
    found = dict(zip(ROLES, total, strict=True))
    assert found["weights"] == pytest.approx(weights, rel=0.15)
    assert found["gradients"] == pytest.approx(found["weights"], rel=0.1)
    assert found["optimizer states"] == pytest.approx(2 * found["weights"], rel=0.1)
    most = roles.bytes_over_time(trace).max(axis=1)
    assert ROLES[int(np.argmax(most))] == "activations" or name == "bert"
    assert 0 < roles.backward < roles.step < trace.operations


def test_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("plotly")
    trace, plan = str(TRACES / "mobilenet_v2.npz"), str(tmp_path / "plan.npz")
    assert main(["analyze", trace, "--budget", "50%", "--link", "1GB/s", "--recompute", "auto", "-o", plan]) == 0
    for file, lanes in ((trace, {"computing"}), (plan, {"computing", "recomputed", "copies out", "copies in"})):
        page = tmp_path / "page.html"
        assert main(["report", file, "-o", str(page)]) == 0
        text = page.read_text()
        assert "MobileNetV2" in text
        assert not re.search(r'<(script|link)[^>]+(src|href)="http', text)  # nothing is fetched
        data = json.loads(re.search(r"Plotly\.newPlot\(\s*\"[^\"]+\",\s*(\[.*?\]),\s*\{\"", text, re.DOTALL)[1])  # type: ignore[index]
        assert {one["name"] for one in data if one["type"] == "bar"} == lanes
        assert {"weights", "activations", "gradients"} <= {one["name"] for one in data if one["type"] == "scatter"}
    assert "open it in a browser" in capsys.readouterr().out


def test_a_table_of_iterations(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    from lgm.reports.page import write_page

    rows = [{"iteration": 1, "plan": "no plan yet"}, {"iteration": 2, "plan": "left at <lambda>"}]
    write_page(lgm.load_trace(TRACES / "gpt2.npz"), tmp_path / "page.html", rows, "mine & yours")
    text = (tmp_path / "page.html").read_text()
    assert "<td>2</td><td>left at &lt;lambda&gt;</td>" in text
    assert "<h1>mine &amp; yours</h1>" in text


def test_a_snapshot_as_torchs_viewer_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    assert main(["snapshot", str(TRACES / "gpt2.npz"), "-o", str(path)]) == 0
    trace = lgm.load_trace(TRACES / "gpt2.npz")
    (events,) = pickle.loads(path.read_bytes())["device_traces"]
    live: dict[int, int] = {}
    most = 0
    for event in events:
        if event["action"] == "alloc":
            assert event["addr"] not in live
            live[event["addr"]] = event["size"]
        else:
            assert live.pop(event["addr"]) == event["size"]
        most = max(most, sum(live.values()))
    assert most == analyze_lifetimes(trace).peak * trace.chunk_bytes
    assert sorted(event["time_us"] for event in events) == [event["time_us"] for event in events]
    assert {event["frames"][0]["filename"] for event in events} <= set(ROLES)


def test_a_snapshot_where_one_dies_and_another_is_born_in_its_place() -> None:
    """As what a loop keeps of the iteration before, until it has the next one."""
    tensors = [(CHUNK, -1, -1), (2 * CHUNK, -1, 2), (2 * CHUNK, 1, -1)]
    trace = build(4, tensors, [(op, 0, 0, 1, 0) for op in range(4)])
    (events,) = snapshot(trace)["device_traces"]
    held = np.cumsum([event["size"] * (1 if event["action"] == "alloc" else -1) for event in events])
    assert held[-1] == CHUNK
    assert held.max() == analyze_lifetimes(trace).peak * trace.chunk_bytes
