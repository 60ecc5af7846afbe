"""A page about the session: for a browser, and as a notebook asks for it."""

from __future__ import annotations

import html
from pathlib import Path

import pytest
import torch

import vtensor
from vtensor.planning import wait_for_plan

pytest.importorskip("plotly")


def train(steps: int) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(256, 512)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        wait_for_plan()


def test_a_page_of_the_plan_and_of_all_iterations_so_far(tmp_path: Path) -> None:
    with vtensor.enabled("8MiB", chunk="64KiB", device="cpu"):
        train(8)
        page = vtensor.report(tmp_path / "run.html", title="mine")
        stats = vtensor.memory_stats()
    assert stats["planned_iterations"] > 0
    text = (tmp_path / "run.html").read_text()
    assert text == page.html
    assert "<h1>mine in 8.00 MiB</h1>" in text and "copies out" in text
    assert text.count("<tr>") == 1 + stats["iterations"] - 1  # the first begins before anybody looks
    assert text.count("followed its plan") == stats["planned_iterations"]


def test_a_notebook_shows_it_in_a_frame_of_its_own() -> None:
    with vtensor.enabled("8MiB", chunk="64KiB", device="cpu"):
        train(8)
        page = vtensor.report()
    frame = page._repr_html_()
    assert frame.startswith("<iframe srcdoc=") and frame.count("<") == 2  # nothing of the page is the notebook's
    assert html.unescape(frame.split('"')[1]) == page.html
    assert len(repr(page)) < 100


def test_without_anything_to_draw_it_is_said_what_to_do() -> None:
    with pytest.raises(vtensor.NotEnabledError):
        vtensor.report()
    with vtensor.enabled("64MiB", chunk="64KiB", device="cpu"):
        train(2)
        with pytest.raises(RuntimeError, match=r"vtensor\.record\(\) first"):
            vtensor.report()
        vtensor.record()
        train(3)
        assert "weights" in vtensor.report().html


def test_a_summary_is_read_as_its_lines() -> None:
    with vtensor.enabled("8MiB", device="cpu"):
        summary = vtensor.memory_summary()
    assert repr(summary) == str(summary) and "\n  budget " in repr(summary)
