"""Results with everything needed to read them later: command, commit, machine, versions."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"
Row = dict[str, Any]


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    return done.stdout.strip()


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def metadata(command: str = "") -> dict[str, Any]:
    """Everything needed to read a result later; `command` in the place of ``python -m benchmarks CASE``."""
    commit = _output("git", "rev-parse", "--short", "HEAD")
    if _output(
        "git", "status", "--porcelain", "--", "../kernels", "../vtensor", "../lgm", "../traces", "../profiles", "*.py"
    ):
        commit += "+changes"
    return {
        "command": command or "python -m benchmarks " + " ".join(sys.argv[1:]),
        "commit": commit,
        "date": datetime.date.today().isoformat(),
        "machine": f"{_processor()}, {os.cpu_count()} cores, {os.sysconf('SC_PHYS_PAGES') * 4096 >> 30} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }


def table(rows: Sequence[Row]) -> str:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(str(row.get(column, "")) for column in columns) + " |" for row in rows]
    return "\n".join(lines)


def write(
    case: str, rows: Sequence[Row], note: str, command: str = "", *, folder: Path = RESULTS, show: bool = True
) -> None:
    """Write `rows` as JSON and as a table, and print the table."""
    data = metadata(command)
    name = f"{case}_host{os.cpu_count()}_{data['date']}"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps({"case": case, "metadata": data, "rows": rows}, indent=1) + "\n")
    facts = "\n".join(f"- {key}: {value}" for key, value in data.items())
    text = f"# {case}\n\n{note}\n\n{table(rows)}\n\n{facts}\n"
    (folder / f"{name}.md").write_text(text)
    if show:
        print(text, flush=True)
