"""``vtensor fit``: what a script's step would take in less memory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import lgm
from lgm.records.units import format_seconds
from vtensor.command.fit import _differ

from .test_cli import run

TRAIN = """
import torch
model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(3)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
small = torch.ones(512)
try:
    for step in range({steps}):
        x = torch.ones({rows}, 512)
        model(x).sum().backward(); optimizer.step(); optimizer.zero_grad()
finally:
    print("steps", step + 1)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(TRAIN.format(steps=200, rows=512))
    return path


def test_the_script_ends_as_soon_as_enough_is_known(script: Path, tmp_path: Path) -> None:
    trace = tmp_path / "t.npz"
    done = run("fit", "--chunk", "64KiB", "--gpu", "gtx1650", "--save-trace", str(trace), str(script))
    assert done.returncode == 0, done.stderr
    steps = re.search(r"steps (\d+)", done.stdout)
    assert steps is not None and 12 <= int(steps[1]) <= 30
    assert re.search(r"\d+ iterations were recorded; \d+ like the one below, which took", done.stderr)
    assert re.search(r"copies here: .*/s out, .*/s back", done.stderr)
    assert "incl. small" in done.stdout
    rows = re.findall(r"^ +\S+ \wiB +(\d+)% +\S+ \wiB +(\S+) \S+ +(\d+\.\d+)", done.stdout, re.MULTILINE)
    assert [row[0] for row in rows[:3]] == ["100", "75", "50"]
    assert all(float(row[2]) >= 0.99 for row in rows)
    assert float(rows[0][2]) <= 1.01
    assert re.search(r"4 GiB .*<- this device", done.stdout)
    # What is written is what is answered for, not one of the iterations under pressure after it.
    assert f"; {format_seconds(lgm.load_trace(trace).seconds)} a step without a budget" in done.stdout


def test_the_answer_is_for_the_usual_step_not_for_the_quickest(script: Path) -> None:
    # One step of four need not wait; a run takes what the others take.
    pause = "import time; time.sleep(0.1 * (step % 4 != 1)); optimizer.step()"
    script.write_text(TRAIN.format(steps=60, rows=64).replace("optimizer.step()", pause))
    done = run("fit", "--chunk", "64KiB", str(script))
    assert done.returncode == 0, done.stderr
    said = re.search(r"([\d.]+) (m?s) a step without a budget", done.stdout)
    assert said is not None and float(said[1]) * (1e-3 if said[2] == "ms" else 1) >= 0.1


def test_a_script_that_is_short_is_answered_for_with_what_was_seen(script: Path) -> None:
    script.write_text(TRAIN.format(steps=3, rows=512))
    done = run("fit", "--chunk", "64KiB", str(script))
    assert done.returncode == 0, done.stderr
    assert "too little was copied to measure it: 12 GB/s each way is assumed" in done.stderr
    assert "50%" in done.stdout


def test_sizes_that_differ_are_told(script: Path) -> None:
    script.write_text(TRAIN.format(steps=60, rows="64 * (1 + step % 7)"))
    done = run("fit", "--chunk", "64KiB", str(script))
    assert done.returncode == 0, done.stderr
    assert "iterations are of" in done.stderr and "the largest of those that came often" in done.stderr
    assert "50%" in done.stdout


def test_a_script_that_closes_stdout_or_catches_its_end(script: Path) -> None:
    body = TRAIN.format(steps=400, rows=128).replace("optimizer.step();", "step_or_go_on();")
    script.write_text(
        "import sys\nsys.stdout.close()\n"
        "def step_or_go_on():\n    try:\n        optimizer.step()\n    except SystemExit:\n        caught.append(1)\n"
        f"caught = []\n{body}"
    )
    done = run("fit", "--chunk", "64KiB", str(script))
    assert done.returncode == 0, done.stderr
    assert "50%" in done.stderr and "the script caught SystemExit, so it was terminated" in done.stderr


@pytest.mark.parametrize(
    ("body", "code"), [("import torch; torch.ones(1 << 20)", 1), ("import torch", 1), ("import sys; sys.exit(3)", 3)]
)
def test_a_script_that_does_not_train(script: Path, body: str, code: int) -> None:
    script.write_text(body)
    done = run("fit", "--save-trace", str(script.with_name("t.npz")), str(script))
    assert done.returncode == code
    assert "no whole iteration with tensors that would be managed was seen, so there is no answer, and" in done.stderr
    assert "t.npz was not written" in done.stderr and "budget" not in done.stderr


def test_times_that_differ_make_the_answer_a_hint() -> None:
    assert not _differ([]) and not _differ([1.0, 1.0, 1.1, 1.1, 4.0])
    assert _differ([1.2, 1.3, 1.3, 1.3, 1.3, 2.0, 3.0, 4.0])


def test_what_the_script_says_of_budgets_counts_for_nothing(script: Path) -> None:
    first = "import vtensor; vtensor.enable('1MiB', chunk='4KiB'); vtensor.disable()"
    script.write_text(f"{first}\n{TRAIN.format(steps=200, rows=512)}")
    done = run("fit", "--chunk", "64KiB", str(script))
    assert done.returncode == 0, done.stderr
    assert "'vtensor fit' runs the script without a budget: its vtensor.enable() does nothing" in done.stderr
    rows = re.findall(r"^ +\S+ \wiB +(\d+)% +\S+ \wiB +(\S+) \S+ +(\d+\.\d+)", done.stdout, re.MULTILINE)
    assert rows[0][0] == "100" and float(rows[0][2]) <= 1.01


def test_numbers_are_of_a_gpu(script: Path) -> None:
    done = run("fit", "--numbers", "bf16", str(script))
    assert done.returncode == 2
    assert "--numbers says what --gpu computes in" in done.stderr


def test_which_script() -> None:
    done = run("fit")
    assert done.returncode == 2
    assert "which script? e.g. vtensor fit train.py" in done.stderr
