"""The scripts in examples/ run, and show what they say."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from ..warm import python
from .torchrun import torchrun_file

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_weights_are_read_back_less_often() -> None:
    done = subprocess.run([python(), str(EXAMPLES / "harmony.py")], capture_output=True, text=True, check=True)
    ordinary, packs = map(float, re.findall(r"([\d.]+) times the weights", done.stdout))
    assert ordinary > 3 * packs
    assert "the same bits" in done.stdout


@pytest.mark.parametrize("name", ["data_parallel.py", "pipeline.py"])
def test_two_processes(name: str) -> None:
    done = torchrun_file(EXAMPLES / name, 2)
    assert done.returncode == 0, done.stderr
    assert re.search(r"loss \d\.\d{4}; (\d+) MiB held in each process", done.stdout)
