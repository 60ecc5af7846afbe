"""The script in examples/ runs, and shows what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_weights_are_read_back_less_often() -> None:
    done = subprocess.run([sys.executable, str(EXAMPLES / "harmony.py")], capture_output=True, text=True, check=True)
    ordinary, packs = map(float, re.findall(r"([\d.]+) times the weights", done.stdout))
    assert ordinary > 3 * packs
    assert "the same bits" in done.stdout
