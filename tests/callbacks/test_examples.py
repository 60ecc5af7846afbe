"""The scripts in examples/ that train with other people's loops run, within their budget and by a plan."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from ..warm import python

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize("name", ["with_accelerate.py", "with_trainer.py"])
def test_it_says_what_was_held(name: str) -> None:
    command = [python("transformers.models.gpt2.modeling_gpt2"), str(EXAMPLES / name), "64MiB"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = (
        r"held in chunks .* peak ([\d.]+) MiB",
        r"wanted by tensors .* peak ([\d.]+) MiB",
        r"planned iterations +(\d+) of \d+",
        r"planned iterations +\d+ of (\d+)",
    )
    found = [re.search(row, done.stdout) for row in rows]
    assert all(found), done.stdout
    held, wanted, planned, iterations = (float(row.group(1)) for row in found if row)
    assert 0 < planned <= iterations
    assert held <= 64 < wanted
