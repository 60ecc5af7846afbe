"""Plans of programs in which one operation needs more than the budget, or more than can be recomputed."""

from __future__ import annotations

import re
from typing import Any

import pytest

import lgm
import vtensor
from vtensor import planning
from vtensor.settings.sizes import parse_bytes

from ..identity import PAGE, mostly_beyond
from .planned import Trainer, gained, run


@pytest.mark.parametrize("fraction", [0.06, 0.03], ids=["uses", "makes"])
@pytest.mark.parametrize("options", [{}, {"link": "100MB/s"}, {"recompute": "never"}], ids=str)
def test_a_plan_where_one_operation_needs_more_than_the_budget(options: dict[str, Any], fraction: float) -> None:
    planned, stats = run(lambda t: [t.step(rows=400) for _ in range(10)] and None, fraction, **options)
    assert gained(planned, 4) == 4
    assert stats["deviations"] == 0
    assert stats["oversize"] > 0


@mostly_beyond
@pytest.mark.parametrize("fraction", [0.06, 0.03], ids=["uses", "makes"])
def test_such_a_plan_is_followed_on_ordered_devices(late: bool, fraction: float) -> None:
    planned, stats = run(lambda t: [t.step(rows=400) for _ in range(10)] and None, fraction, overdraws=not late)
    assert gained(planned, 4) == 4
    assert (stats["borrowed_bytes.peak"] if late else stats["overdrawn_bytes.peak"]) > 0


def test_no_plan_where_one_operation_has_more_tensors_than_there_are_chunks(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="vtensor"), vtensor.enabled(2 * PAGE, chunk=PAGE, min_size=1):
        trainer = Trainer()
        for _ in range(8):
            trainer.step(rows=400)
        stats = vtensor.memory_stats()
    assert stats["planned_iterations"] == 0
    assert "has more tensors than that has chunks. There is a plan from 16.00 KiB on" in caplog.text


def test_where_too_little_can_be_made_again_a_plan_is_for_more_than_the_budget(
    caplog: pytest.LogCaptureFixture,
) -> None:
    planned, stats = run(lambda t: [t.step() for _ in range(12)] and None, 0.3, recompute="only")
    assert gained(planned, 4) == 4
    assert stats["deviations"] == 0 and stats["evictions"] == 0
    assert stats["held_bytes.peak"] <= stats["budget_bytes"] < needed(caplog)
    assert 0 < stats["borrowed_bytes.peak"] <= needed(caplog)


@mostly_beyond
def test_such_a_plan_is_followed_on_ordered_devices_too(late: bool, caplog: pytest.LogCaptureFixture) -> None:
    program: Any = lambda t: [t.step() for _ in range(12)] and None  # noqa: E731
    planned, stats = run(program, 0.3, recompute="only", overdraws=not late)
    assert gained(planned, 4) == 4 and stats["evictions"] == 0
    assert stats["budget_bytes"] < needed(caplog)


def needed(caplog: pytest.LogCaptureFixture) -> int:
    """What plans are made for, by the one warning."""
    (warning,) = [record.getMessage() for record in caplog.records if record.module == "maker"]
    assert "allow copies (recompute='auto')" in warning
    found = re.search(r"Planned for ([^;]+);", warning)
    assert found is not None, warning
    return parse_bytes(found[1], "needed")


def test_that_nothing_can_be_planned_without_copies_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with vtensor.enabled("1MiB", chunk=4096, min_size=1, recompute="only"):
        maker = planning.current().maker

        def too_small(*_given: Any) -> None:
            raise lgm.InfeasibleError("an operation", 2, 1, "too small a budget")

        monkeypatch.setattr(planning.maker, "make_recording", too_small)
        for _ in range(2):
            maker.make_of({}, lgm.Device(maker.config.budget_chunks, 1e9, 1e9))
            maker.work.wait()
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "no plan, steps will be slow: too small a budget"
    ]
