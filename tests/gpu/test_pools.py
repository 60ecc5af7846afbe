"""``vtensor.devices.pools`` over CuPy's real pools, on a machine without a GPU (tests/gpu/cupy_standin)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .cupy_standin import build
from .cupy_standin.programs import PROGRAMS

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("cupy", reason="CuPy is not installed")
    return build(tmp_path_factory.mktemp("cupy"))


@pytest.mark.parametrize("program", [program.__name__ for program in PROGRAMS])
def test_pools(library: Path, program: str) -> None:
    command = [sys.executable, "-m", "tests.gpu.cupy_standin.programs", library, program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
