"""Scripts run by several processes, as ``torchrun`` starts them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from ..warm import python

ROOT = Path(__file__).resolve().parents[2]


def torchrun(script: str, folder: Path, processes: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the text of a script in so many processes; what they printed."""
    path = folder / "train.py"
    path.write_text(script)
    return torchrun_file(path, processes, *arguments)


def torchrun_file(path: Path, processes: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script."""
    ours = python("transformers.models.gpt2.modeling_gpt2")
    command = [ours, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return subprocess.run(
        [*command, str(path), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHON_EXEC": ours},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
