"""``vtensor.devices.pools`` over CuPy's real pools, on a machine without a GPU (tests/gpu/cupy_standin)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .cupy_standin import build
from .cupy_standin.programs import PROGRAMS

ROOT = Path(__file__).resolve().parents[2]


def test_pools(tmp_path: Path) -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed")
    command = [sys.executable, "-m", "tests.gpu.cupy_standin.programs", build(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [program.__name__ for program in PROGRAMS], done.stderr[-3000:]
