"""A budget where none is given: what is free, less a reserve; what does not fit waits on a disk."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import vtensor
from vtensor import native
from vtensor.planning.current_planner import current
from vtensor.session.reserve import Reserve
from vtensor.settings import available, groups
from vtensor.settings.available import budget_of_its_own, free_memory, physical_memory, spill_directory
from vtensor.settings.config import asked_again, chunk_for, make_config
from vtensor.settings.groups import Group, memory_groups
from vtensor.settings.options import Options

from ..command.test_cli import run
from ..warm import python

MIB = 1 << 20

GIB = 1 << 30


@pytest.fixture(autouse=True)
def no_budget_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VTENSOR_BUDGET", raising=False)


def test_what_is_free() -> None:
    assert 0 < free_memory("cpu") <= physical_memory()
    assert budget_of_its_own(4 * GIB) == 4 * GIB - GIB // 2
    assert budget_of_its_own(20 * GIB) == 18 * GIB
    assert budget_of_its_own(GIB // 2) == GIB // 4


def test_where_the_kernel_tells_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Services may see nothing of /proc but processes."""
    monkeypatch.setattr(available, "_told", lambda _path: "")
    assert 0 < available.free_memory("cpu") <= available.physical_memory()
    assert available.most_chunks() > 1000
    assert available.spill_directory() is None


def test_chunks_of_a_small_gpu_are_small() -> None:
    mib = 1 << 20
    assert [chunk_for("cuda", gib * GIB) // mib for gib in (1, 2, 4, 6, 8, 12, 16, 80)] == [2, 2, 4, 4, 8, 8, 16, 16]
    assert chunk_for("cuda", 100 * mib) == 2 * mib
    assert chunk_for("cpu", 60 * GIB) == 2 * mib


def test_a_disk_is_where_files_take_no_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = spill_directory()
    assert found is None or os.access(found, os.W_OK)
    read = Path.read_text
    disk, ram = tmp_path / "a disk", tmp_path / "ram"
    for folder in (disk, ram):
        folder.mkdir()
    at = str(disk).replace(" ", "\\040")
    mounts = f"none / tmpfs rw 0 0\nx {at} ext4 rw 0 0\ny {ram} tmpfs rw 0 0\n"
    monkeypatch.setattr(Path, "read_text", lambda self: mounts if str(self) == "/proc/mounts" else read(self))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(disk))
    assert spill_directory() == str(disk)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(ram))
    monkeypatch.chdir(disk)
    assert spill_directory() == str(disk)
    monkeypatch.chdir(ram)
    assert spill_directory() is None


def test_without_a_disk_it_waits_in_the_reserve(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("vtensor.settings.config.free_memory", lambda *_device: 4 * GIB)
    monkeypatch.setattr("vtensor.settings.config.spill_directory", lambda: None)
    config = make_config()
    assert (config.budget, config.host, config.spill_dir) == (4 * GIB - GIB // 2, GIB // 2, "")
    assert "no budget was given: using 3.50 GiB of the 4.00 GiB that are free; what does not fit goes" in caplog.text


def test_what_is_given_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("vtensor.settings.config.free_memory", lambda *_device: 4 * GIB)
    assert make_config(options=Options(spill_dir=tmp_path)).spill_dir == str(tmp_path)
    monkeypatch.chdir(tmp_path.parent)
    relative = make_config(options=Options(spill_dir=tmp_path.name))
    monkeypatch.chdir("/")  # what is relative was so where it was said
    assert relative.spill_dir == str(tmp_path)
    assert asked_again(relative, "1GiB", {}).spill_dir == str(tmp_path)
    assert make_config(options=Options(host="1GiB")).host == GIB
    assert make_config(options=Options(recompute="only")).spill_dir == ""
    monkeypatch.setenv("VTENSOR_BUDGET", "2GiB")
    assert make_config().budget == 2 * GIB
    assert make_config("1GiB").budget == GIB
    monkeypatch.setenv("VTENSOR_BUDGET", "2 what")
    with pytest.raises(vtensor.ConfigError, match="VTENSOR_BUDGET='2 what' is not a size"):
        make_config()
    monkeypatch.setenv("VTENSOR_BUDGET", "")  # as if it were not set
    assert make_config().budget == 4 * GIB - GIB // 2


def test_numbers_of_numpy_are_numbers() -> None:
    assert make_config(np.int64(GIB), Options(device="cpu")).budget == GIB
    assert make_config(np.float32(0.5), Options(device="cpu")).budget == make_config(0.5, Options(device="cpu")).budget
    assert make_config("1GiB", Options(device="cpu", chunk=np.int32(1 << 21))).chunk == 1 << 21


def test_more_than_is_free(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("vtensor.settings.config.free_memory", lambda *_device: 64 << 20)
    monkeypatch.setattr("vtensor.settings.config.spill_directory", lambda: str(tmp_path))
    with vtensor.enabled():
        tensors = [torch.full((1 << 20,), float(i)) for i in range(32)]  # 128 MiB
        stats = vtensor.memory_stats()
        assert stats["budget_bytes"] == 32 << 20
        assert stats["held_bytes.peak"] <= 32 << 20
        assert stats["absent_bytes.current"] >= 90 << 20
        assert all((tensor == i).all() for i, tensor in enumerate(tensors))


def test_a_script_with_no_budget(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch; print(torch.ones(1 << 20).sum().item())")
    done = run("run", str(script))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1048576.0\n"
    assert "no budget was given" in done.stderr
    assert "moved out" in done.stderr


def write_group(folder: Path, files: dict[str, object]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (folder / name).write_text(f"{value}\n")


def test_the_least_of_all_groups_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A job in a node's group, of the kernel's second version: its own limit is unlimited, its parent's is not."""
    monkeypatch.setattr(groups, "_OWN", tmp_path / "cgroup")
    monkeypatch.setattr(groups, "_MOUNTED", tmp_path)
    (tmp_path / "cgroup").write_text("0::/node/job\n")
    cached = "anon 5\ninactive_file 9\nactive_file 4\n"
    write_group(tmp_path / "node", {"memory.max": 2 * GIB, "memory.current": GIB, "memory.stat": cached})
    write_group(tmp_path / "node/job", {"memory.max": "max", "memory.current": GIB, "memory.stat": ""})
    assert memory_groups() == [Group(2 * GIB, GIB + 11)]
    assert physical_memory() == 2 * GIB
    assert free_memory("cpu") <= GIB + 11


def test_a_container_sees_its_own_group_as_the_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The first version; the path is the host's, which does not exist inside."""
    monkeypatch.setattr(groups, "_OWN", tmp_path / "cgroup")
    monkeypatch.setattr(groups, "_MOUNTED", tmp_path)
    (tmp_path / "cgroup").write_text("4:memory:/docker/0123\n3:cpu:/docker/0123\n0::/../elsewhere\n")
    assert memory_groups() == []
    files = {"memory.limit_in_bytes": GIB, "memory.usage_in_bytes": 2 * GIB, "memory.stat": "total_inactive_file 0\n"}
    write_group(tmp_path / "memory", files)
    assert memory_groups() == [Group(GIB, 0)]


def train(steps: int) -> None:
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.randn(4, 64)).sum().backward()
        optimizer.step()


@pytest.mark.parametrize(("limit", "budget"), [(8, "16MiB"), (16, "1GiB")])
def test_addresses_are_limited(limit: int, budget: str) -> None:
    """By ``ulimit -v``, as on clusters: the host store and the addresses of tensors leave the program half of them."""
    script = (
        "import resource, torch, vtensor\n"
        f"resource.setrlimit(resource.RLIMIT_AS, ({limit} << 30, {limit} << 30))\n"
        "left = lambda: resource.getrlimit(resource.RLIMIT_AS)[0] - "
        "int(open('/proc/self/statm').read().split()[0]) * 4096\n"
        "before = left()\n"
        f"with vtensor.enabled('{budget}', device='cpu'):\n"
        "    assert left() > 0.45 * before, (left(), before)\n"
        "    vtensor.enable('16MiB')\n"
        "    kept = [torch.full((1 << 20,), float(k)) for k in range(16)]\n"
        "    assert all((tensor == k).all() for k, tensor in enumerate(kept))\n"
        "    assert vtensor.memory_stats()['evictions']\n"
    )
    done = subprocess.run([python(), "-c", script], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr


def test_what_is_not_managed_grows(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The budget makes way as soon as a quarter of the reserve is left, and no further than to half of it."""
    free = {"bytes": 4 * GIB}
    for module in ("settings.config", "session.reserve"):
        monkeypatch.setattr(f"vtensor.{module}.free_memory", lambda *_device: free["bytes"])
    monkeypatch.setattr("vtensor.session.reserve._PAUSE", 0.0)
    reserve, mib = GIB // 2, 1 << 20
    budget = 4 * GIB - reserve
    with vtensor.enabled():
        train(2)
        free["bytes"] -= reserve * 3 // 4
        train(1)
        assert vtensor.memory_stats()["budget_bytes"] == budget
        free["bytes"] -= 10 * mib
        train(1)
        lowered = vtensor.memory_stats()["budget_bytes"]
        assert lowered == budget - (reserve // 4 + 10 * mib)
        assert "118.00 MiB of the 512.00 MiB kept free for unmanaged memory are left" in caplog.text
        train(2)
        assert vtensor.memory_stats()["budget_bytes"] == lowered
        free["bytes"] = 0
        train(2)
        assert vtensor.memory_stats()["budget_bytes"] == budget // 8 // (2 * mib) * (2 * mib)


def test_a_budget_that_cannot_be_lowered_is_not_said_to_be(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("vtensor.session.reserve.free_memory", lambda *_device: 0)
    monkeypatch.setattr("vtensor.session.reserve._PAUSE", 0.0)
    with vtensor.enabled():
        Reserve(native.load(), current().config, lambda _bytes: None).look()  # as in a forked child
        assert "the budget is" not in caplog.text


def test_a_given_budget_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vtensor.session.reserve.free_memory", lambda *_device: 0)
    monkeypatch.setattr("vtensor.session.reserve._PAUSE", 0.0)
    with vtensor.enabled("64MiB"):
        train(3)
        assert vtensor.memory_stats()["budget_bytes"] == 64 << 20
    with vtensor.enabled():
        vtensor.enable("64MiB")
        train(3)
        assert vtensor.memory_stats()["budget_bytes"] == 64 << 20


def test_a_large_budget_has_as_many_chunks_as_linux_has_mappings_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("vtensor.settings.available.most_mappings", lambda: 65530)
    chunks = {gib: chunk_for("cpu", gib * GIB) >> 20 for gib in (1, 63, 64, 127, 128, 1000)}
    assert chunks == {1: 2, 63: 2, 64: 4, 127: 4, 128: 8, 1000: 32}
    assert make_config("1GiB", Options(device="cpu", chunk="64KiB")).chunk == 64 << 10 and caplog.text == ""
    assert make_config("2GiB", Options(device="cpu", chunk="32KiB")).chunk == 32 << 10
    assert "65536 chunks of 32.00 KiB, and Linux allows mappings for about 32765" in caplog.text


def test_a_budget_larger_than_memory_is_said_to_limit_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("vtensor.settings.config.physical_memory", lambda: 4 << 30)
    make_config("4GiB", Options(device="cpu"))
    assert caplog.text == ""
    assert make_config("5GiB", Options(device="cpu")).budget == 5 << 30
    assert "the budget of 5.00 GiB exceeds the memory of 4.00 GiB" in caplog.text


def test_a_disk_takes_as_much_as_is_free_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    there = SimpleNamespace(f_bavail=3 << 18, f_bfree=1 << 20, f_blocks=1 << 30, f_frsize=4096)
    monkeypatch.setattr("os.statvfs", lambda _directory: there)
    assert make_config("1GiB", Options(device="cpu", spill_dir=tmp_path)).host == 3 << 30


def test_what_left_for_memory_is_not_taken_for_what_is_not_managed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("vtensor.session.reserve.free_memory", lambda *_device: 100 * MIB)
    shot = {"handles": {"chunks": 500}, "slots_used": 32}
    for options, spare in ((Options(device="cpu"), 140), (Options(device="cpu", spill_dir=tmp_path), 76)):
        config = make_config("1GiB", options)  # 512 chunks of 2 MiB
        assert Reserve(None, config, lambda _bytes: None)._spare(shot) == spare * MIB  # type: ignore[arg-type]
