"""Where the compiled core is kept: for its user alone, refused where somebody else could have changed it."""

from __future__ import annotations

import fcntl
import io
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import vtensor
from vtensor import native
from vtensor.native import cache

STRANGER = 12345
WHOLE = b"\x7fELF".ljust(64, b"\0")  # the head of an ELF file without sections


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.fixture
def loose_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A library in a cache that is as it should be. It is no real one: nothing may get as far as loading it."""
    native.load()  # the real one, from where it is
    monkeypatch.setenv("VTENSOR_CACHE", str(tmp_path / "cache"))
    path = native.library_path()
    cache.make_private(path.parent)
    path.write_bytes(WHOLE)
    path.chmod(0o700)
    return path


def refusal() -> str:
    with pytest.raises(vtensor.BuildError) as caught:
        native.load.__wrapped__()
    return str(caught.value)


def test_what_a_killed_build_left_is_removed(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library.unlink()
    cut_off = library.parent / "building-1"
    cut_off.mkdir()
    (cut_off / "0.cpp.o").write_bytes(b"half")
    monkeypatch.setattr(native.library, "build", lambda target: target.write_bytes(b""))
    native.library._build_once(library)
    assert library.is_file() and not cut_off.exists()


@pytest.mark.parametrize("left", [0, 63, 4096, 100_000])
def test_what_was_cut_off_is_built_again(left: int, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To load it would end the process by SIGBUS, with no word."""
    here = Path(str(native.load().__file__))
    assert cache.is_whole(here)
    library.write_bytes(here.read_bytes()[:left])
    assert not cache.is_whole(library)
    monkeypatch.setattr(native.library, "build", lambda target: target.write_bytes(WHOLE))
    assert "cannot load" in refusal()
    assert library.read_bytes() == WHOLE


def test_a_compiler_whose_environment_sets_another_standard(monkeypatch: pytest.MonkeyPatch) -> None:
    """conda's do."""
    monkeypatch.setenv("CXXFLAGS", "-std=c++17 -O1")
    assert native.library.flags()[-3:] == ["-std=c++17", "-O1", "-std=c++20"]


def test_who_waits_for_anothers_build_says_so(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = io.StringIO()  # pytest's own is emptied when it is read, also of what another thread writes meanwhile
    monkeypatch.setattr("sys.stderr", said)
    with (library.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waits = threading.Thread(target=native.library._build_once, args=(library,))
        waits.start()
        while waits.is_alive() and "waiting for another process" not in said.getvalue():
            time.sleep(0.001)
        fcntl.flock(lock, fcntl.LOCK_UN)
    waits.join()
    assert "waiting for another process" in said.getvalue()


def test_what_is_ours_is_accepted(library: Path) -> None:
    cache.check_ours(library)
    library.parent.chmod(0o755)
    library.chmod(0o755)  # others may read
    cache.check_ours(library)


@pytest.mark.parametrize("above", [0, 1, 2, 3], ids=["library", "build", "cache", "parent"])
@pytest.mark.parametrize("bits", [0o020, 0o002], ids=["group", "world"])
def test_what_others_can_write_is_refused(
    library: Path, above: int, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_is_own_group", lambda gid: False)
    place = [library, *library.parents][above]
    place.chmod(0o700 | bits)
    message = refusal()
    assert f"others can write to {place} " in message and f"chmod go-w {place}" in message
    assert "VTENSOR_CACHE" in message
    command = re.search(r"'(chmod [^']*)'", message)
    assert command is not None
    subprocess.run(command[1].split(), check=True)  # what it says helps
    cache.check_ours(library)


def test_a_group_of_ones_own_is_nobody_else(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library.parent.chmod(0o770)
    monkeypatch.setattr(cache, "_is_own_group", lambda gid: gid == library.parent.stat().st_gid)
    cache.check_ours(library)


def test_which_groups_are_ones_own() -> None:
    assert not cache._is_own_group(STRANGER)


@pytest.mark.parametrize("above", [0, 1, 2], ids=["library", "build", "cache"])
def test_what_belongs_to_somebody_else_is_refused(library: Path, above: int, monkeypatch: pytest.MonkeyPatch) -> None:
    place = [library, *library.parents][above]
    found = os.stat_result((0o40700, 0, 0, 0, STRANGER, 0, 0, 0, 0, 0))
    real = Path.stat
    monkeypatch.setattr(Path, "stat", lambda self, **how: found if self == place else real(self, **how))
    message = refusal()
    assert f"{place} belongs to user {STRANGER}" in message and "VTENSOR_CACHE" in message


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_what_was_given_away_is_refused(library: Path) -> None:
    os.chown(library, STRANGER, -1)
    assert "belongs to user" in refusal()


def test_what_root_installed_serves_every_user(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if library.stat().st_uid != 0:
        pytest.skip("these files are not root's")
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    cache.check_ours(library)


def test_a_sticky_directory_above_is_accepted(library: Path) -> None:
    library.parents[2].chmod(0o1777)
    cache.check_ours(library)


def test_the_library_is_looked_at_where_it_is(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loose = tmp_path / "loose"
    loose.mkdir()
    loose.chmod(0o777)
    shutil.move(library.parents[1], loose / "cache")
    library.parents[1].symlink_to(loose / "cache")
    assert f"others can write to {loose} " in refusal()


def test_directories_are_made_for_one_user(loose_umask: None, tmp_path: Path) -> None:
    cache.make_private(tmp_path / "a" / "b" / "c")
    assert [mode(tmp_path / path) for path in ("a", "a/b", "a/b/c")] == [0o700] * 3


def test_a_build_is_one_users(loose_umask: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\n: > "$2"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("VTENSOR_CACHE", str(tmp_path / "cache"))
    assert "delete it to build again" in refusal()  # what that makes is empty
    library = native.library_path()
    assert [mode(path) for path in (library, library.parent, library.parents[1])] == [0o700] * 3


def test_a_compiler_newer_than_the_library_of_this_python(library: Path, tmp_path: Path) -> None:
    """As in an environment of conda's: the linker's words alone are Greek, and to build again is no use."""
    (tmp_path / "newer.map").write_text("GLIBCXX_9.9 { newer; };")
    shared = [str(native.compiler()), "-shared", "-fPIC", "-nostdlib", "-xc++", "-"]
    newer = tmp_path / "libstdc++.so.6"
    version = f"-Wl,--version-script={tmp_path / 'newer.map'}"
    name = "-Wl,-soname,libstdc++.so.6"
    subprocess.run([*shared, "-o", newer, name, version], input=b'extern "C" int newer() { return 1; }', check=True)
    text = b'extern "C" int newer(); extern "C" int needs() { return newer(); }'
    subprocess.run([*shared, "-xnone", newer, "-o", library], input=text, check=True)
    assert "conda install -c conda-forge libstdcxx-ng" in refusal()


def test_nothing_is_compiled_where_others_can_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VTENSOR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(native.library, "build", lambda target: pytest.fail("it compiled"))
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    assert "others can write" in refusal()


@pytest.mark.parametrize("path", ["file", "file/below", "file/far/below"])
def test_a_place_that_cannot_be_used(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VTENSOR_CACHE", str(tmp_path / path))
    message = refusal()
    assert f"cannot be kept in {tmp_path / path}" in message and "set VTENSOR_CACHE" in message


def test_a_directory_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``/proc`` refuses root, too."""
    monkeypatch.setenv("VTENSOR_CACHE", "/proc/vtensor")
    assert "cannot be kept in /proc/vtensor" in refusal()


def test_nobody_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("VTENSOR_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", none)
    assert "set VTENSOR_CACHE" in refusal()


def test_the_doctor_and_the_command_say_it_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "train.py").write_text("")
    place = str(tmp_path / "file" / "cache")
    for arguments, code in ((["doctor"], 1), (["run", "--budget", "64MiB", str(tmp_path / "train.py")], 2)):
        done = subprocess.run(
            [sys.executable, "-m", "vtensor", *arguments],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"VTENSOR_CACHE": place},
        )
        assert done.returncode == code and f"cannot be kept in {place}" in done.stdout + done.stderr
        assert "Traceback" not in done.stderr


def test_a_torch_with_cuda_has_a_core_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its version does not say so: a Jetson's, or one's own build."""
    monkeypatch.setattr(torch.version, "cuda", None)
    without = native.library_path()
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert native.library_path() != without
