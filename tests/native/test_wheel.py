"""The wheel, and the one made of the sdist, hold all that runs where there is no source tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"
USE = (
    "import torch, vtensor, lgm, lgm.harmony.command, vtensor.harmony.pipeline, vtensor.callbacks.figures\n"
    "vtensor.enable('4MiB', device='cpu', chunk=4096, min_size=4096)\n"
    "kept = [torch.full((1 << 18,), float(k)) for k in range(8)]\n"
    "assert all((t == k).all() for k, t in enumerate(kept)) and vtensor.memory_stats()['evictions'] > 0\n"
    "print(vtensor.__file__)\n"
)


def built(what: str, source: Path, into: Path) -> Path:
    command = [sys.executable, "-c", BUILD, f"build_{what}", str(into)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=120)
    (found,) = into.glob("*.whl" if what == "wheel" else "*.tar.gz")
    return found


@pytest.mark.parametrize("through", ["wheel", pytest.param("sdist", marks=pytest.mark.long)])
def test_what_is_installed_runs_by_itself(tmp_path: Path, through: str) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("lgm", "vtensor", "kernels"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "build"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    if through == "sdist":
        with tarfile.open(built("sdist", source, tmp_path)) as archive:
            archive.extractall(tmp_path)
        (source,) = tmp_path.glob("vtensor-*[0-9]")
    site = tmp_path / "site"
    (tmp_path / "wheels").mkdir()
    with zipfile.ZipFile(built("wheel", source, tmp_path / "wheels")) as archive:
        archive.extractall(site)
    for folder, place in (("lgm", "lgm"), ("vtensor", "vtensor"), ("kernels", "vtensor/kernels")):
        for file in (ROOT / folder).rglob("*"):
            if file.suffix in (".py", ".h", ".cpp", ".cu"):
                assert (site / place / file.relative_to(ROOT / folder)).is_file(), file
    # The same sources: what the tests compiled is taken.
    done = subprocess.run(
        [sys.executable, "-c", USE], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(site)}, text=True,
        capture_output=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(site / "vtensor" / "__init__.py")
    assert "compiling" not in done.stderr
