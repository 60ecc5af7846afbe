"""The spill file: readable for its user alone, without a name, and gone with its process however that ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

CHILD = """
import os, sys, torch, vtensor
os.umask(0)
vtensor.enable(16 * 4096, chunk=4096, min_size=1, spill_dir=sys.argv[1])
tensors = [torch.full((8192,), float(i)) for i in range(20)]
assert vtensor.memory_stats()["host_bytes.current"] > 100 * 4096
print("spilled", flush=True)
sys.stdin.read()
"""


def test_nothing_is_left_after_a_kill(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stdout is not None and child.stdout.readline() == "spilled\n"
            assert list(tmp_path.iterdir()) == [], "the file has a name"
            files = [entry for entry in Path(f"/proc/{child.pid}/fd").iterdir() if entry.readlink().parent == tmp_path]
            (file,) = files
            assert str(file.readlink()).endswith("(deleted)")
            found = file.stat()
            assert found.st_mode & 0o777 == 0o600 and found.st_nlink == 0
            assert found.st_size > 100 * 4096, "data is in it"
        finally:
            child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []
