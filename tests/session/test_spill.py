"""The spill file: readable for its user alone, without a name, and gone with its process however that ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ..warm import python

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


CLOSES = """
import os, sys, torch, vtensor
vtensor.enable(64 * 4096, chunk=4096, min_size=1, spill_dir=sys.argv[1])
tensors = [torch.full((8192,), float(i)) for i in range(int(sys.argv[3]))]
os.closerange(3, 4096)
mine = open(sys.argv[2], "w+b")
mine.write(b"A" * 100)
mine.flush()
try:
    tensors += [torch.full((8192,), float(i)) for i in range(20)]
    print(sum(float(t[0]) for t in tensors))
except torch.OutOfMemoryError as error:
    print(error)
"""


@pytest.mark.parametrize("before", [2, 20])
def test_a_file_that_has_its_number_now_is_left_alone(tmp_path: Path, before: int) -> None:
    """Daemons close all descriptors, and open files of their own. Data that was in the spill file already is lost."""
    (spill := tmp_path / "spill").mkdir()
    mine = tmp_path / "mine"
    done = subprocess.run(
        [python(), "-c", CLOSES, str(spill), str(mine), str(before)],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert mine.read_bytes() == b"A" * 100
    assert "Bad file descriptor" in done.stdout + done.stderr
    if before == 2:
        assert "the program closed the file in spill_dir" in done.stdout


FORKS = """
import os, resource, sys, torch, vtensor
vtensor.enable(16 * 4096, chunk=4096, min_size=1, host="1TiB", spill_dir=sys.argv[1])
tensors = [torch.full((8192,), float(i)) for i in range(20)]
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + (1 << 30),) * 2)
child = os.fork()
if child == 0:
    os._exit(int(sum(float(t[0]) for t in tensors) != 190))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_fork_where_addresses_are_limited(tmp_path: Path) -> None:
    """A child has no part of the file, which may be larger than what it may address."""
    done = subprocess.run([python(), "-c", FORKS, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.stdout == "0\n", done.stderr


FORKS_WHILE_IT_SAVES = """
import os, subprocess, sys, threading, torch, vtensor
vtensor.enable(16 * 4096, chunk=4096, min_size=1, spill_dir=sys.argv[1])
torch.set_num_threads(1)  # a fork leaves those of OpenMP behind
tensor = torch.full((1 << 21,), 3.0)
array = tensor.numpy() if sys.argv[2] == "numpy" else None

def save(path):
    with open(path, "wb") as saved, subprocess.Popen("cat", stdin=subprocess.PIPE, stdout=saved, bufsize=0) as cat:
        torch.save(tensor, cat.stdin)

for nth in range(10):
    path = f"{sys.argv[1]}/saved.{nth}.pt"
    saver = threading.Thread(target=save, args=(path,))
    saver.start()
    while saver.is_alive():
        if (child := os.fork()) == 0:
            os._exit(int(tensor.add_(1).sum() != 4 << 21))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert torch.equal(torch.load(path), tensor)
    os.remove(path)
assert tensor.sum() == 3 << 21
"""


@pytest.mark.parametrize("how", ["as it is", "numpy"])
def test_a_fork_while_it_saves(how: str, tmp_path: Path) -> None:
    """What is being written stays mapped in the parent, whoever else has its address; the child has what it was."""
    command = [python(), "-c", FORKS_WHILE_IT_SAVES, str(tmp_path), how]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


WRITES_WHEN_IT_IS_SAVED = """
import os, sys, threading, torch, vtensor
vtensor.enable(16 * 4096, chunk=4096, min_size=1, spill_dir=sys.argv[1])
torch.set_num_threads(1)
tensor = torch.full((1 << 21,), 3.0)
array = tensor.numpy()
(read, write), (wait, go) = os.pipe(), os.pipe()

def save():
    with os.fdopen(write, "wb", buffering=0) as file:
        torch.save(tensor, file)

saver = threading.Thread(target=save)
saver.start()
os.read(read, 1)  # the rest is larger than the pipe
if (child := os.fork()) == 0:
    os.close(write)  # or the parent's reading has no end
    os.close(go)
    os.read(wait, 1)
    os._exit(int(tensor.sum() != 3 << 21))
while os.read(read, 1 << 20) and saver.is_alive():
    pass
saver.join()
tensor.add_(1)
os.write(go, b"!")
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert tensor.sum() == 4 << 21
"""


def test_a_child_does_not_see_what_is_written_when_it_has_been_saved(tmp_path: Path) -> None:
    """It stayed where it was over the fork, in the file that both have."""
    command = [python(), "-c", WRITES_WHEN_IT_IS_SAVED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


LIMITED = """
import resource, sys, torch, vtensor
vtensor.enable(16 * 4096, chunk=4096, min_size=1, spill_dir=sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (8 * 4096,) * 2)
kept = []
try:
    for i in range(20):
        kept.append(torch.full((8192,), float(i)))
except torch.OutOfMemoryError as error:
    print(error)
assert all(float(tensor[0]) == i for i, tensor in enumerate(kept))
"""


def test_files_are_limited(tmp_path: Path) -> None:
    done = subprocess.run([python(), "-c", LIMITED, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "What would help: files that may be larger (ulimit -f)" in done.stdout
