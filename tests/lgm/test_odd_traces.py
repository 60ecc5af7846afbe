"""Traces that no training leaves behind, and that somebody may hand in all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

import lgm
from lgm.command.cli import main
from lgm.records.model import Trace

MIB = 1 << 20
# An operation uses one chunk of a table that is larger than the budget.
PART = Trace(
    MIB, ("aten::embedding", "aten::mul", "aten::mul_backward", "aten::add_"), [0, 1, 2, 3], [10**7] * 4, [0, 1, 2, 3],
    [8 * MIB, MIB, MIB], [-1, 0, 1], [-1, 3, 2], [0, 1, 2, 3], [0, 1, 2, 0], [0, 0, 0, 4], [1, 1, 1, 5], [0, 0, 0, 1],
)  # fmt: skip
# The forward pass as a chain needs more memory than there is, in whatever number of pieces it is counted.
NO_SLOTS = Trace(
    16, ("a", "b_backward", "(goes on)"), [2, 1, 0, 1, 2], [584, 454, 829, 951, 390], [0, 3, 2, 3, 4],
    [16, 70, 49, 31, 34], [3, -1, 0, 1, -1], [-1, -1, 4, -1, -1], [0, 1, 1, 2, 2, 4, 4, 4], [2, 1, 4, 1, 3, 0, 2, 3],
    [0] * 8, [4, 5, 3, 5, 2, 1, 4, 2], [0, 0, 0, 1, 1, 1, 0, 0], {}, [0, 1, 4], [0, 2, 4], [1, 2, 2],
)  # fmt: skip
# What can be run again is in the backward pass.
NO_FORWARD_CALL = Trace(
    MIB, ("aten::add", "aten::mul_backward"), [0, 0, 1, 0], [10**6] * 4, [0, 1, 2, 3], [MIB, 2 * MIB, MIB],
    [-1, 0, 1], [-1, 2, 3], [0, 1, 2, 3], [0, 1, 1, 0], [0] * 4, [1, 2, 2, 1], [0] * 4, {}, [3], [3], [1],
)  # fmt: skip


def saved(trace: Trace, tmp_path: Path) -> str:
    lgm.save_trace(trace, tmp_path / "trace.npz")
    return str(tmp_path / "trace.npz")


def test_what_is_used_of_a_table_fits_and_the_whole_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a plan whole tensors would come: what that would take nobody can say, and all else is said."""
    trace, plan = saved(PART, tmp_path), str(tmp_path / "plan.npz")
    assert main(["analyze", trace, "--budget", "4MiB", "-o", plan]) == 0
    for command in (["validate", plan], ["show", plan], ["report", plan, "-o", str(tmp_path / "page.html")]):
        assert main(command) == 0
    assert "without a plan     - (" in capsys.readouterr().out
    assert main(["simulate", trace, "--budget", "4MiB"]) == 0
    assert "on demand, whole tensors            -" in capsys.readouterr().out


def test_segments_that_fit_in_no_number_of_slots(tmp_path: Path) -> None:
    trace, plan = saved(NO_SLOTS, tmp_path), str(tmp_path / "plan.npz")
    assert main(["analyze", trace, "--budget", "224", "--recompute", "segments", "-o", plan]) == 0
    assert main(["validate", plan]) == 0


@pytest.mark.parametrize("command", [["checkpoints"], ["analyze", "--budget", "90%", "--recompute", "segments"]])
def test_a_forward_pass_without_a_call(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command[0], saved(NO_FORWARD_CALL, tmp_path), *command[1:]]) == 2
    assert "nothing of this trace's forward pass can be run again" in capsys.readouterr().err


@pytest.mark.parametrize("batch", ["1000000000000", "18446744073709551617"])
def test_a_batch_that_no_machine_holds(batch: str, capsys: pytest.CaptureFixture[str]) -> None:
    trace = str(Path(__file__).resolve().parents[2] / "traces" / "bert.npz")
    assert main(["analyze", trace, "--budget", "50%", "--gpu", "gtx1650", "--batch", batch]) == 2
    assert "more bytes than any machine addresses" in capsys.readouterr().err
