"""Bugs that a review found, each with the sequence that showed it."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from vtensor import native

from ..warm import python

PAGE = 4096
module = native.load()


def make(budget: int, **options: Any) -> Any:
    return module.parts.TestEngine(budget, PAGE, **options)


def test_a_tensor_may_fault_at_the_same_address_for_ever() -> None:
    engine = make(8)
    address = engine.allocate(PAGE)
    engine.write(address, b"x" * PAGE)
    for _ in range(10_050):
        engine.evict_all()
        assert engine.read(address, 1) == b"x"
    engine.free(address)


def test_more_than_all_addresses_is_refused() -> None:
    engine = make(4)
    for nbytes in (2**44 + PAGE, 2**53, 2**63):
        with pytest.raises(module.OutOfMemory, match="addresses"):
            engine.allocate(nbytes)
    assert engine.validate() == ""


def test_a_host_store_that_cannot_be_written_does_not_hang_anybody() -> None:
    engine = make(8)
    address = engine.allocate(8 * PAGE)
    engine.write(address, b"y" * 8 * PAGE)
    engine.fail("poll_out", 1, 1 << 60)
    with pytest.raises(module.OutOfMemory, match="nothing was lost"):
        engine.resize(2)
    engine.evict_all()
    with pytest.raises(module.OutOfMemory, match="copy to the host store"):
        engine.allocate(4 * PAGE)
    assert engine.read(address, 8 * PAGE) == b"y" * 8 * PAGE
    assert engine.validate() == ""


def test_an_exported_tensor_is_mapped_as_soon_as_the_evicting_call_returns(tmp_path: Path) -> None:
    engine = make(4, granularity="tensor", link=200_000.0)
    exported = engine.allocate(4 * PAGE)
    engine.write(exported, b"abcd" * PAGE)
    engine.export_address(exported)
    other = engine.allocate(PAGE)  # the whole victim leaves, over a link that takes 20 ms a piece
    where = engine.residency(exported)
    assert where["leaving"] == where["absent"] == where["arriving"] == 0
    with (tmp_path / "out").open("wb", buffering=0) as file:
        assert os.write(file.fileno(), (ctypes.c_char * (4 * PAGE)).from_address(exported)) == 4 * PAGE
    assert (tmp_path / "out").read_bytes() == b"abcd" * PAGE
    engine.free(other)


def test_a_copy_between_two_absent_pieces_ends_with_one_free_chunk() -> None:
    engine = make(8)
    source, target = engine.allocate(PAGE), engine.allocate(PAGE)
    engine.write(source, b"s" * PAGE)
    engine.write(target, b"t" * PAGE)
    engine.evict_all()
    pinned = engine.allocate(7 * PAGE)
    engine.pin(pinned, 0, 7 * PAGE, True)
    ctypes.memmove(target, source, PAGE)
    assert engine.read(target, PAGE) == b"s" * PAGE
    assert engine.snapshot()["faults"] < 100


def test_a_failed_unmap_keeps_a_clean_piece_read_only() -> None:
    # Uses up the mappings the kernel allows, but for one: mprotect still works then, mremap does not.
    code = """
import ctypes
from pathlib import Path
from vtensor import native
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
engine = native.load().parts.TestEngine(1, 4096)
address = engine.allocate(4096)
engine.write(address, b"OLD")
engine.evict_all()
engine.unpin(engine.pin(address, 0, 4096, False))
assert engine.residency(address)["clean"] == 1
pages = int(Path("/proc/sys/vm/max_map_count").read_text()) * 2 + 1000
base = libc.mmap(None, pages * 4096, 0, 0x4022, -1, 0)
page = 0
while page < pages and libc.mprotect(base + page * 4096, 4096, 1) == 0:
    page += 2
libc.mprotect(base + 2 * 4096, 4096, 0)
engine.evict_all()
print("refused" if engine.residency(address)["resident"] else "served")
libc.munmap(base, pages * 4096)
engine.write(address, b"NEW")
engine.evict_all()
assert engine.read(address, 3) == b"NEW", "a write was lost"
assert engine.validate() == ""
"""
    done = subprocess.run([python(), "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_a_forked_child_computes_with_threads_if_its_parent_never_did() -> None:
    """OpenMP's threads do not come along to a child. A process that has none yet must not be given any by the fork."""
    code = """
import os, signal, torch, vtensor
vtensor.enable("64MiB")
child = os.fork()
if child == 0:
    signal.alarm(60)
    x = torch.ones(1 << 22)
    os._exit(0 if (x + x).sum().item() == 2 << 22 else 1)
status = os.waitpid(child, 0)[1]
assert status == 0, status
"""
    done = subprocess.run([python(), "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("spill", [False, True])
def test_the_books_are_right_on_both_sides_of_a_fork(spill: bool, tmp_path: Path) -> None:
    engine = make(4, spill_dir=str(tmp_path) if spill else "")
    addresses = [engine.allocate(2 * PAGE) for _ in range(5)]
    for i, address in enumerate(addresses):
        engine.write(address, bytes([i]) * 2 * PAGE)
    child = os.fork()
    for i, address in enumerate(addresses):
        assert engine.read(address, 2 * PAGE) == bytes([i]) * 2 * PAGE
        engine.write(address, bytes([i + 9 + (child == 0)]) * 2 * PAGE)
    engine.free(addresses.pop())
    assert engine.validate() == ""
    for i, address in enumerate(addresses):
        assert engine.read(address, 2 * PAGE) == bytes([i + 9 + (child == 0)]) * 2 * PAGE
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert engine.validate() == ""
