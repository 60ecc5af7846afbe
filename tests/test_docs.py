"""The documentation: it builds without a warning, and what it says to write runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import lgm.command.cli
import vtensor.command.cli

from .warm import python

DOCS = Path(__file__).resolve().parents[1] / "docs"


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """Links that lead nowhere are warnings, and so are names that nobody documents."""
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q", "-b", "html", str(DOCS), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for page in DOCS.glob("*.md"):
        assert (tmp_path / f"{page.stem}.html").is_file()
    assert "vtensor.enable" in (tmp_path / "api.html").read_text()
    assert "One planned iteration" in (tmp_path / "design_iteration.html").read_text()


def blocks() -> list[tuple[str, str]]:
    """Python, by page."""
    return [
        (page.name, block)
        for page in sorted(DOCS.glob("*.md"))
        for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    ]


def test_parts_of_programs_are_python() -> None:
    for page, block in blocks():
        compile(block, page, "exec")


def test_whole_programs_run(tmp_path: Path) -> None:
    """Those that import what they use and leave nothing out."""
    whole = [found for found in blocks() if "import torch" in found[1] and "..." not in found[1]]
    assert [page for page, _ in whole] == ["start.md"]
    script = tmp_path / "page.py"
    for page, block in whole:
        script.write_text(block)
        done = subprocess.run([python(), str(script)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, (page, done.stderr)


def test_every_command_it_names_is_there() -> None:
    text = "".join(page.read_text() for page in DOCS.glob("*.md"))
    named = set(re.findall(r"^(vtensor|lgm) ([a-z]+)", text, re.MULTILINE)) | set(
        re.findall(r"`(vtensor|lgm) ([a-z]+)", text)
    )
    assert ("vtensor", "fit") in named
    mains = {"vtensor": vtensor.command.cli.main, "lgm": lgm.command.cli.main}
    for tool, command in named:
        with pytest.raises(SystemExit) as stopped:
            mains[tool]([command, "--help"])
        assert stopped.value.code == 0, (tool, command)
