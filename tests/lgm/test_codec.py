"""Files: exact both ways, and an error that says what is wrong with any other."""

from __future__ import annotations

import errno
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

import lgm
from lgm.records import codec

from .random_traces import lawless, training


def same(a: object, b: object) -> bool:
    for name in a.__slots__:  # type: ignore[attr-defined]
        left, right = getattr(a, name), getattr(b, name)
        if isinstance(left, np.ndarray):
            if left.dtype != right.dtype or not np.array_equal(left, right):
                return False
        elif name == "trace":
            if not same(left, right):
                return False
        elif left != right:
            return False
    return True


@pytest.mark.parametrize("seed", range(20))
def test_a_trace_comes_back_as_it_was(tmp_path: Path, seed: int) -> None:
    trace = lawless(seed)
    lgm.save_trace(trace, tmp_path / "t.npz")
    assert same(lgm.load_trace(tmp_path / "t.npz"), trace)


def test_a_plan_comes_back_as_it_was(tmp_path: Path) -> None:
    plan = lgm.analyze(training(6), lgm.Device(80, 1e6, 1e6))
    lgm.save_plan(plan, tmp_path / "p.npz")
    assert same(lgm.load_plan(tmp_path / "p.npz"), plan)


def test_large_numbers_survive(tmp_path: Path) -> None:
    trace = training(3)
    object.__setattr__(trace, "op_ns", trace.op_ns + 2**40)
    lgm.save_trace(trace, tmp_path / "t.npz")
    assert same(lgm.load_trace(tmp_path / "t.npz"), trace)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    lgm.save_trace(training(4), tmp_path / "t.npz")
    return tmp_path / "t.npz"


def test_every_truncation_is_an_error(file: Path) -> None:
    whole = file.read_bytes()
    for length in [0, 1, 10, *range(20, len(whole), max(1, len(whole) // 40))]:
        file.write_bytes(whole[:length])
        with pytest.raises(lgm.FormatError, match=r"t\.npz"):
            lgm.load_trace(file)


def test_flipped_bytes_are_an_error_or_harmless(file: Path) -> None:
    whole = bytearray(file.read_bytes())
    for place in range(0, len(whole), max(1, len(whole) // 60)):
        broken = bytearray(whole)
        broken[place] ^= 0x5A
        file.write_bytes(broken)
        try:
            lgm.load_trace(file)
        except lgm.FormatError:
            continue


def test_foreign_files(tmp_path: Path) -> None:
    text = tmp_path / "a.npz"
    text.write_text("hello")
    foreign = tmp_path / "b.npz"
    np.savez(foreign, x=np.arange(3))
    pickled = tmp_path / "c.npz"
    np.savez(pickled, header=np.array([{"format": "trace"}], dtype=object))
    for path in (text, foreign, pickled, tmp_path, tmp_path / "none.npz"):
        with pytest.raises(lgm.FormatError):
            lgm.load_trace(path)


def _edit(file: Path, **changes: object) -> None:
    with np.load(file) as data:
        arrays = {name: data[name] for name in data.files}
    header = json.loads(arrays["header"].tobytes())
    arrays["header"] = np.frombuffer(json.dumps(header | changes).encode(), dtype=np.uint8)
    np.savez(file, **arrays)


def test_a_newer_version_says_so(file: Path) -> None:
    _edit(file, version=codec.VERSION + 1)
    with pytest.raises(lgm.FormatError, match="Update vtensor"):
        lgm.load_trace(file)


def test_a_plan_is_not_a_trace(file: Path) -> None:
    with pytest.raises(lgm.FormatError, match="this is a trace, not a plan"):
        lgm.load_plan(file)


def test_indices_outside_are_refused(file: Path) -> None:
    with np.load(file) as data:
        arrays = {name: data[name] for name in data.files}
    arrays["use_tensor"] = arrays["use_tensor"].astype(np.int64) + 1000
    np.savez(file, **arrays)
    with pytest.raises(lgm.FormatError, match="outside"):
        lgm.load_trace(file)


def test_nothing_in_a_file_is_pickled(file: Path) -> None:
    with zipfile.ZipFile(file) as archive:
        for name in archive.namelist():
            assert b"O" not in archive.read(name)[:128].split(b"descr")[1][:12]


def test_what_is_no_file_is_written_through(tmp_path: Path) -> None:
    """A link stays one; a device is not replaced by a file (as root could)."""
    file, link = tmp_path / "t.npz", tmp_path / "link.npz"
    file.write_bytes(b"old")
    link.symlink_to(file)
    lgm.save_trace(training(3, 1), link)
    assert link.is_symlink() and lgm.load_trace(file).operations == training(3, 1).operations
    lgm.save_trace(training(3, 1), "/dev/null")
    assert Path("/dev/null").is_char_device()
    with pytest.raises(IsADirectoryError):
        lgm.save_trace(training(3, 1), tmp_path)
    with pytest.raises(FileNotFoundError, match=r"missing/t\.npz'$"):  # not a name that nobody asked for
        lgm.save_trace(training(3, 1), tmp_path / "missing" / "t.npz")
    assert {each.name for each in tmp_path.iterdir()} == {"t.npz", "link.npz"}


def test_a_failed_write_leaves_the_old_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = file.read_bytes()

    def fail(path: Path, content: memoryview) -> None:
        with path.open("wb") as half:
            half.write(content[: len(content) // 2])
        raise OSError(errno.ENOSPC, "disk full")

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(OSError, match=rf"disk full: '{file}'"):
        lgm.save_trace(training(2), file)
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]
