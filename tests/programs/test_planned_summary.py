"""What the summary says where no plan is followed."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable

import pytest
import torch

import lgm
import vtensor
from vtensor import native, planning
from vtensor.planning.current_planner import newest_plan

from ..identity import PAGE
from . import planned
from .planned import Trainer


def test_a_summary_says_why_there_is_no_plan() -> None:
    with vtensor.enabled(2 * PAGE, chunk=PAGE, min_size=1, host=1 << 30):
        trainer = Trainer()
        for _ in range(6):
            trainer.step(rows=400)
        assert "no plan: a budget of" in vtensor.memory_summary()


def test_a_summary_says_that_no_iteration_ends() -> None:
    """Parameters that the program updates by itself."""
    with vtensor.enabled(12 * PAGE, chunk=PAGE, min_size=1, host=1 << 30):
        assert "no plan: everything fits" in vtensor.memory_summary()
        weight = torch.randn(64, 64, requires_grad=True)
        for _ in range(4):
            (gradient,) = torch.autograd.grad((torch.randn(128, 64) @ weight).square().mean(), weight)
            weight.data.sub_(gradient)
        assert "no plan: no iteration ended" in vtensor.memory_summary()
        vtensor.step()
        assert "no iteration ended" not in vtensor.memory_summary()


def test_a_summary_says_that_each_step_has_a_thread_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    with vtensor.enabled(320 << 10, chunk=PAGE, min_size=1, host=1 << 30):
        trainer = Trainer()
        for _ in range(6):
            (thread := threading.Thread(target=trainer.step)).start()
            thread.join()
        assert "is there a new one for each step?" in vtensor.memory_summary()
    assert not caplog.records


def test_a_summary_says_that_the_first_plan_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    wait = threading.Event()
    analyze = lgm.analyze
    monkeypatch.setattr("vtensor.planning.maker.lgm.analyze", lambda *a, **k: wait.wait(60) and analyze(*a, **k))
    monkeypatch.setattr(planned, "wait_for_plan", lambda: None)
    with vtensor.enabled(320 << 10, chunk=PAGE, min_size=1):
        trainer = Trainer()
        for _ in range(6):
            trainer.step()
        assert "no plan: the first is still being made" in vtensor.memory_summary()
        wait.set()


def test_figures_and_words_of_a_plan() -> None:
    with vtensor.enabled(320 << 10, chunk=PAGE, min_size=1, host=1 << 30, link="1GB/s"):
        trainer = Trainer()
        for _ in range(10):
            trainer.step()
        plan, core, shot = newest_plan(), native.load(), None
        while shot != (shot := core.snapshot()):  # copies may be under way
            stats, summary = vtensor.memory_stats(), vtensor.memory_summary()
    assert plan is not None and stats["planned_iterations"] > 0 and stats["copy_lanes"]
    assert stats["predicted_step_seconds"] == plan.prediction.step_seconds > 0
    assert 0.5 * stats["budget_bytes"] < stats["predicted_bytes"] <= stats["budget_bytes"]
    assert stats["host_capacity_bytes"] == 1 << 30 and stats["pinned_bytes"] == 0
    copying = (shot["out_ns"] + shot["in_ns"]) / 1e9
    assert stats["hidden_copy_seconds"] == pytest.approx(max(copying - stats["wait_seconds"], 0.0))
    assert 0 < (stats["moved_out_bytes"] + stats["moved_in_bytes"]) / 1.1e9 < copying
    hidden = stats["hidden_copy_seconds"] / (stats["hidden_copy_seconds"] + stats["wait_seconds"])
    assert f"0 left their plan; {hidden:.0%} of copying hidden; {stats['late_arrivals']} late arrivals" in summary


def test_a_summary_and_the_journal_say_where_an_iteration_left_its_plan() -> None:
    with vtensor.enabled(320 << 10, chunk=PAGE, min_size=1, host=1 << 30):
        trainer = Trainer()
        for k in range(10):
            trainer.step(stop=3 if k == 8 else None)
        stats, summary = vtensor.memory_stats(), vtensor.memory_summary()
        said = [row["plan"] for row in planning.current_planner.keep_journal().rows]
    assert stats["deviations"] == 1
    found = re.search(r"1 left their plan \(the last at operation (\d+), (\S+)\)", summary)
    assert found is not None and "aten::" in found[2]
    (left,) = [words for words in said if words.startswith("left its plan at")]
    assert left.startswith(f"left its plan at {found[1]}, {found[2]}")
    assert said.count("followed its plan") == stats["planned_iterations"]


def test_a_summary_says_what_was_recomputed() -> None:
    with vtensor.enabled("64MiB", chunk=PAGE, min_size=1 << 20, recompute="only", policy="lru"):
        a, b = torch.rand(1024, 1024), torch.rand(1024, 1024)  # which cannot be recomputed
        cheap, expected = a + b, (a + b).sum()
        assert "recomputed" not in vtensor.memory_summary()
        vtensor.enable("11MiB")
        assert vtensor.residency(cheap).dropped > 0
        assert cheap.sum() == expected
        summary = vtensor.memory_summary()
    made = re.search(r"\n  recomputed +([\d.]+) MiB   peak ([\d.]+) MiB dropped; [\d.]+ s of computing\n", summary)
    assert made is not None and float(made[1]) >= float(made[2]) > 0


def test_a_summary_says_what_was_held_beyond_the_budget(late: bool, everything: Callable[..., None]) -> None:
    everything(10 * PAGE)
    torch.ones(20 * PAGE // 4).add_(1)
    summary, stats = vtensor.memory_summary(), vtensor.memory_stats()
    assert ("\n  beyond the budget " in summary) == (not late) == (stats["overdrawn_bytes.peak"] > 0)
    assert f"\n  larger than the budget {stats['oversize']:>14} operations".replace(" ", "") in summary.replace(" ", "")


@pytest.mark.parametrize(("small", "hinted"), [(200, False), (8000, True)])
def test_a_summary_says_that_most_is_too_small_to_be_managed(small: int, hinted: bool) -> None:
    with vtensor.enabled("16MiB", device="cpu"):
        kept = [torch.ones(1024) for _ in range(small)]  # 4 KiB each
        assert ("more than the budget: with a smaller chunk=" in vtensor.memory_summary()) == hinted
        assert len(kept) == small
