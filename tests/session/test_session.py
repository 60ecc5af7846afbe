"""enable, disable, contexts, configuration, primitives, figures: what the public layer promises."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import lgm
import vtensor
from vtensor import native, planning
from vtensor.session import lifecycle
from vtensor.settings.config import make_config
from vtensor.settings.sizes import parse_bytes, parse_link

from ..identity import PAGE
from ..memory import resident_bytes
from ..warm import python


def test_importing_builds_nothing_and_imports_no_core() -> None:
    code = "import vtensor, sys; assert not any('_vtensor_native' in m for m in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_is_exported_once() -> None:
    assert len(set(vtensor.__all__)) == len(vtensor.__all__)
    assert all(hasattr(vtensor, name) for name in vtensor.__all__)


def test_an_enable_that_fails_half_way_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.Tensor.numpy, torch._foreach_add, dict(vars(torch.Tensor))

    def refuse(*_given: Any) -> None:
        raise RuntimeError("refused")

    monkeypatch.setattr("vtensor.session.lifecycle.cut_foreach", refuse)
    with pytest.raises(RuntimeError, match="refused"):
        vtensor.enable("64MiB")
    assert not vtensor.is_enabled()
    assert (torch.Tensor.numpy, torch._foreach_add, dict(vars(torch.Tensor))) == before
    monkeypatch.undo()
    with vtensor.enabled("64MiB"):
        assert vtensor.is_enabled()


def test_enable_twice_and_disable_twice() -> None:
    vtensor.enable("64MiB")
    vtensor.enable("64MiB")
    assert vtensor.is_enabled()
    vtensor.disable()
    vtensor.disable()
    assert not vtensor.is_enabled()


def test_enable_again_changes_the_budget_only(everything: Callable[..., None]) -> None:
    everything(10 * PAGE)
    tensors = [torch.full((PAGE,), float(i)) for i in range(6)]
    vtensor.enable(40 * PAGE)
    assert vtensor.memory_stats()["budget_bytes"] == 40 * PAGE
    assert all((t == i).all() for i, t in enumerate(tensors))
    vtensor.enable(8 * PAGE)
    assert vtensor.memory_stats()["budget_bytes"] == 8 * PAGE
    assert vtensor.memory_stats()["held_bytes.current"] <= 8 * PAGE
    assert all((t == i).all() for i, t in enumerate(tensors))
    with pytest.raises(vtensor.ConfigError, match="policy"):
        vtensor.enable(8 * PAGE, policy="size_staleness")


def test_nested_contexts(everything: Callable[..., None]) -> None:
    with vtensor.enabled(32 * PAGE, chunk=PAGE, min_size=1):
        x = torch.ones(PAGE * 4)
        with vtensor.enabled(8 * PAGE):
            assert vtensor.memory_stats()["budget_bytes"] == 8 * PAGE
            assert (x == 1).all()
        assert vtensor.memory_stats()["budget_bytes"] == 32 * PAGE
    assert not vtensor.is_enabled()
    assert (x == 1).all()


def test_enable_again_keeps_the_device_where_there_is_a_gpu_too(monkeypatch: pytest.MonkeyPatch) -> None:
    vtensor.enable("64MiB", device="cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with vtensor.enabled("32MiB"):
        assert vtensor.memory_stats()["budget_bytes"] == 32 << 20
    assert vtensor.memory_stats()["budget_bytes"] == 64 << 20


def test_tensors_outlive_the_session(everything: Callable[..., None]) -> None:
    everything(10 * PAGE)
    tensors = [torch.full((PAGE,), float(i)) for i in range(8)]
    vtensor.disable()
    assert all((t == i).all() for i, t in enumerate(tensors))
    tensors[0].add_(5)
    everything(10 * PAGE)  # a new session beside the tensors of the old one
    more = [torch.full((PAGE,), float(-i)) for i in range(8)]
    assert (tensors[0] + more[3] == 2).all()
    del tensors[1:]
    vtensor.disable()
    assert (tensors[0] == 5).all() and (more[7] == -7).all()


def test_tensors_made_before_are_unmanaged(everything: Callable[..., None]) -> None:
    old = torch.randn(PAGE)
    everything(10 * PAGE)
    assert not vtensor.residency(old).managed
    assert vtensor.residency(old.clone()).managed
    with pytest.raises(vtensor.ConfigError, match="not managed"):
        vtensor.split(old)


def test_min_size_and_unmanaged_bytes() -> None:
    vtensor.enable("16MiB", chunk=PAGE, min_size=PAGE)
    before = vtensor.memory_stats()["unmanaged_bytes.current"]
    small, large = torch.ones(100), torch.ones(PAGE)
    assert not vtensor.residency(small).managed and vtensor.residency(large).managed
    assert vtensor.memory_stats()["unmanaged_bytes.current"] - before >= 400


def test_what_was_made_without_a_session_is_no_peak_of_small_tensors() -> None:
    vtensor.enable("64MiB")
    vtensor.disable()
    torch.ones(8 << 20)
    vtensor.enable("64MiB")
    stats = vtensor.memory_stats()
    assert stats["unmanaged_bytes.peak"] - stats["unmanaged_bytes.current"] < 1 << 20


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VTENSOR_BUDGET", "48MiB")
    vtensor.enable()
    assert vtensor.memory_stats()["budget_bytes"] == 48 << 20
    vtensor.disable()
    monkeypatch.setenv("VTENSOR_DISABLE", "1")
    vtensor.enable()
    assert not vtensor.is_enabled()
    assert vtensor.adopt(torch.nn.Linear(PAGE, 1)) == vtensor.memory_stats()["moved_out_bytes"] == 0
    assert vtensor.memory_summary() == "vtensor: off, as VTENSOR_DISABLE is set"
    vtensor.step()
    vtensor.record()
    vtensor.reset_peak_memory_stats()
    assert vtensor.residency(vtensor.salloc(1 << 20)).chunks == 0
    with vtensor.tracks() as tracks:
        pass
    assert tracks.spans == []
    with pytest.raises(vtensor.NotEnabledError, match="does nothing while VTENSOR_DISABLE is set"):
        vtensor.report()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": "lots"}, "not a size"),
        ({"budget": -1}, "positive"),
        ({"budget": 1.5}, "a share"),
        ({"budget": True}, "bytes or a text"),
        ({"budget": "1MiB"}, "not one chunk"),
        ({"budget": "1GiB", "chunk": 5000}, "power of two"),
        ({"budget": "64MiB", "min_size": "10GiB"}, "more than the budget"),
        ({"budget": "1GiB", "policy": "random"}, "policy"),
        ({"budget": "1GiB", "granularity": "page"}, "granularity"),
        ({"budget": "1GiB", "oversize": "ignore"}, "oversize"),
        ({"budget": "1GiB", "spill_dir": "/nowhere/at/all"}, "not a directory"),
        ({"budget": "1GiB", "link": -3}, "link"),
        ({"budget": "1GiB", "recompute": "sometimes"}, "recompute"),
        ({"budget": "1GiB", "recompute": "never", "policy": "delta"}, "leaves it no choice"),
        ({"budget": "1GiB", "recompute": "only", "spill_dir": "/"}, "copies nothing"),
        ({"budget": "1GiB", "device": "tpu"}, "device"),
    ],
)
def test_bad_arguments(options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VTENSOR_BUDGET", raising=False)
    with pytest.raises(vtensor.ConfigError, match=message):
        vtensor.enable(**options)
    assert not vtensor.is_enabled()


def test_cuda_without_a_gpu_is_a_clear_error() -> None:
    if torch.cuda.is_available():
        pytest.skip("torch sees a GPU")
    with pytest.raises(vtensor.UnsupportedDeviceError, match="no GPU"):
        vtensor.enable("1GiB", device="cuda")


def test_sizes() -> None:
    assert parse_bytes("1.5GiB", "x") == 3 << 29
    assert parse_bytes("2MB", "x") == 2_000_000
    assert parse_bytes(" 4 k", "x") == 4096
    assert parse_link("6GB/s") == 6e9
    assert parse_link(None) == 0
    total = make_config(1.0).budget
    assert abs(make_config(0.5).budget - total / 2) <= 4 << 20
    assert make_config("0.5").budget == make_config(0.5).budget


def test_the_first_call_is_needed() -> None:
    for call in (vtensor.memory_stats, vtensor.memory_summary, vtensor.reset_peak_memory_stats):
        with pytest.raises(vtensor.NotEnabledError):
            call()
    with pytest.raises(vtensor.NotEnabledError):
        vtensor.salloc(PAGE)


def test_split_salloc_merge(everything: Callable[..., None]) -> None:
    everything(10 * PAGE)
    victim = torch.arange(6 * PAGE // 4, dtype=torch.float32)
    torch.zeros(1).add_(1)
    fresh = vtensor.salloc(7 * PAGE)
    pieces = vtensor.split(victim)
    assert [p.nbytes for p in pieces] == [PAGE] * 6
    assert vtensor.residency(victim).absent >= 2
    gone = {p.address for p in pieces if p.state == "absent"}
    taken = {p.took_chunk_of for p in vtensor.split(fresh) if p.took_chunk_of}
    assert taken and taken <= gone, "swapped-by edges name the vTensors that left"
    address = victim.data_ptr()
    assert vtensor.merge(victim) is victim
    assert vtensor.residency(victim).resident == 6
    assert victim.data_ptr() == address
    assert torch.equal(victim, torch.arange(6 * PAGE // 4, dtype=torch.float32))


def test_statistics(everything: Callable[..., None]) -> None:
    everything(10 * PAGE)
    tensors = [torch.full((PAGE,), float(i)) for i in range(6)]
    stats = vtensor.memory_stats()
    for name in ("tensor_bytes", "wanted_bytes", "absent_bytes", "borrowed_bytes", "unmanaged_bytes"):
        current, peak, allocated, freed = (stats[f"{name}.{k}"] for k in ("current", "peak", "allocated", "freed"))
        assert 0 <= current <= peak <= allocated and current == allocated - freed
    assert stats["wanted_bytes.current"] >= 6 * 4 * PAGE
    assert stats["held_bytes.peak"] <= stats["budget_bytes"] == 10 * PAGE
    assert stats["moved_out_bytes"] >= 14 * PAGE
    assert "budget" in vtensor.memory_summary()
    del tensors
    vtensor.reset_peak_memory_stats()
    stats = vtensor.memory_stats()
    assert stats["wanted_bytes.peak"] == stats["wanted_bytes.current"]


def test_room_to_spare_moves_and_remaps_nothing() -> None:
    vtensor.enable("1GiB", chunk=PAGE, min_size=1)
    model = torch.nn.Sequential(*(torch.nn.Linear(128, 128) for _ in range(4)))
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(64, 128)).sum().backward()
        optimizer.step()

    for _ in range(3):
        step()
    before = vtensor.memory_stats()
    for _ in range(5):
        step()
    after = vtensor.memory_stats()
    assert after["remaps"] == before["remaps"]
    assert after["moved_out_bytes"] == after["moved_in_bytes"] == 0


def test_nothing_leaks_over_many_sessions(everything: Callable[..., None], tmp_path: Any) -> None:
    def files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    def maps() -> int:
        return len(Path("/proc/self/maps").read_text().splitlines())

    for round_ in range(12):
        everything(8 * PAGE, spill_dir=tmp_path)
        tensors = [torch.full((PAGE,), float(i)) for i in range(6)]
        assert all((t == i).all() for i, t in enumerate(tensors))
        vtensor.disable()
        del tensors
        gc.collect()
        if round_ == 1:
            open_files, mappings = files(), maps()
    assert files() <= open_files
    assert maps() <= mappings + 20


def test_live_handles_return_to_zero(everything: Callable[..., None]) -> None:
    everything(8 * PAGE)
    module = native.load()
    tensors = [torch.full((PAGE,), float(i)) for i in range(6)]
    del tensors
    gc.collect()
    module.parts.evict_all()
    shot = module.snapshot()
    assert shot["held_chunks"] == 0 and shot["slots_used"] == 0 and shot["ranges"] == 0
    assert shot["handles"]["mappings"] == shot["handles"]["host_mappings"] == shot["handles"]["copies"] == 0


def test_another_budget_is_in_chunks_of_the_session(everything: Callable[..., None]) -> None:
    everything(64 * PAGE)
    lifecycle.resize(5 * PAGE + 7)
    assert vtensor.memory_stats()["budget_bytes"] == 5 * PAGE
    vtensor.disable()
    with pytest.raises(vtensor.NotEnabledError):
        lifecycle.resize(5 * PAGE)
    assert not vtensor.is_enabled()


def test_a_budget_that_recompute_only_cannot_reach_is_refused_in_its_words(everything: Callable[..., None]) -> None:
    everything(64 * PAGE, recompute="only")
    kept = [torch.randn(PAGE) for _ in range(8)]  # random numbers, torch's own: nothing makes them again
    with pytest.raises(torch.OutOfMemoryError, match="recompute='only' copies nothing"):
        lifecycle.resize(4 * PAGE)
    assert vtensor.memory_stats()["budget_bytes"] == 64 * PAGE and len(kept) == 8


def test_what_finds_no_room_where_nothing_is_copied_is_not_called_large() -> None:
    script = (
        "import torch, vtensor\n"
        "with vtensor.enabled('1MiB', device='cpu', chunk=4096, min_size=4096, recompute='only'):\n"
        "    kept = [torch.randn(64, 64) for _ in range(80)]\n"  # random numbers, torch's own: nothing makes them again
        "    print(vtensor.memory_summary())\n"
    )
    done = subprocess.run([python(), "-c", script], capture_output=True, text=True, timeout=100, check=False)
    assert "recompute='only' copies nothing, and what cannot be recomputed stays" in done.stderr
    assert "found no room" in done.stdout and "larger than the budget" not in done.stdout + done.stderr


def test_a_forked_process_is_told_and_can_end(tmp_path: Path) -> None:
    script = tmp_path / "forks.py"
    script.write_text(
        "import os, torch, vtensor\n"
        "vtensor.enable('8MiB', device='cpu')\n"
        "from vtensor import planning\n"
        "import time; planning.current().maker.work.start(lambda: time.sleep(1))\n"
        "if (child := os.fork()) == 0:\n"
        "    assert not vtensor.is_enabled() and 'made in it are torch' in vtensor.memory_summary()\n"
        "    with vtensor.enabled('4MiB'):\n"
        "        pass\n"
        "    vtensor.memory_stats()\n"
        "    try:\n"
        "        vtensor.adopt(torch.ones(1 << 20))\n"
        "        os._exit(1)\n"
        "    except vtensor.NotEnabledError:\n"
        "        vtensor.disable()\n"
        "    try:\n"
        "        vtensor.enable('4MiB', device='cpu')\n"  # nothing would be managed
        "        os._exit(1)\n"
        "    except vtensor.ConfigError as error:\n"
        "        assert 'spawn' in str(error) and not vtensor.is_enabled()\n"
        "    os._exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "assert vtensor.is_enabled() and 'forked' not in vtensor.memory_summary()\n"
    )
    done = subprocess.run([python(), str(script)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "forked while vtensor was enabled" in done.stderr


@pytest.mark.parametrize("leaves_first", ["the first", "the second"])
def test_of_blocks_in_two_threads_the_last_ends_the_session(leaves_first: str) -> None:
    inside, left = threading.Event(), threading.Event()

    def second() -> None:
        with vtensor.enabled("4MiB", device="cpu"):
            inside.set()
            if leaves_first == "the first":
                assert left.wait(60)
                found.append(vtensor.residency(torch.ones(1 << 20)).managed)

    found: list[bool] = []
    other = threading.Thread(target=second)
    with vtensor.enabled("8MiB", device="cpu"):
        other.start()
        assert inside.wait(60)
        if leaves_first == "the second":
            other.join()
            found.append(vtensor.memory_stats()["budget_bytes"] == 8 << 20)
    assert vtensor.is_enabled() == (leaves_first == "the first")
    left.set()
    other.join()
    assert found == [True] and not vtensor.is_enabled()


def test_blocks_of_two_threads_that_overlap_leave_the_budget_as_it_was() -> None:
    inside, left = threading.Event(), threading.Event()

    def second() -> None:
        with vtensor.enabled("4MiB"):
            inside.set()
            assert left.wait(60)

    def budget() -> int:
        return int(vtensor.memory_stats()["budget_bytes"]) >> 20

    vtensor.enable("16MiB", device="cpu")
    other = threading.Thread(target=second)
    with vtensor.enabled("8MiB"):
        other.start()
        assert inside.wait(60)
    assert budget() == 4  # somebody is within that one still
    left.set()
    other.join()
    assert budget() == 16


def test_an_ended_session_keeps_no_memory_but_its_tensors() -> None:
    with vtensor.enabled("16MiB", device="cpu"):
        kept = torch.ones(1 << 18)
        many = [torch.ones(1 << 20) for _ in range(32)]
        full = resident_bytes()
        del many
    assert resident_bytes() < full - (100 << 20)
    assert kept.sum() == 1 << 18


def test_a_plan_of_what_was_moved_meanwhile_is_not_taken(
    everything: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    everything(64 * PAGE, policy="plan")
    planner = planning.current()
    taken: list[Any] = []
    monkeypatch.setattr(planning.maker, "install", lambda _module, plan, *_: taken.append(plan))
    made = SimpleNamespace(
        trace=SimpleNamespace(operations=1, seconds=1.0), reservation=0, remaking=None,
        prediction=lgm.Prediction(1.0, peak_chunks=64, waits_seconds=0.0, out_chunks=0, in_chunks=0),
    )  # fmt: skip
    monkeypatch.setattr(planning.maker, "plans", lambda *_, **__: [made])
    monkeypatch.setattr(planning.maker, "orders", lambda plan, _: plan)
    recording, device = SimpleNamespace(trace=None, followed=False), SimpleNamespace(budget_chunks=64)
    planner.maker._plan(recording, {}, device)
    assert taken == [made]
    planner.maker.forget()  # while the next is being made
    planner.maker._plan(recording, {}, device)
    assert taken == [made]
    planner.maker.plan = None


def test_a_session_may_end_while_a_plan_is_made(
    everything: Callable[..., None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    everything(64 * PAGE, policy="plan")
    planner, begun, stopped = planning.current(), threading.Event(), threading.Event()

    def make(*_given: Any) -> None:
        begun.set()
        assert stopped.wait(60)
        native.load().forget_plans()

    def stop() -> None:
        stopped.set()
        stop_planner()

    stop_planner = lifecycle.stop_planner
    monkeypatch.setattr(planning.maker, "make_recording", make)
    monkeypatch.setattr(lifecycle, "stop_planner", stop)
    planner.maker.work.start(lambda: planner.maker._analyze({}, lgm.Device(1, 1, 1)))
    assert begun.wait(60)
    vtensor.disable()
    assert "analysis failed" not in caplog.text and not planner.maker.why_not


def test_sizes_that_never_come_again_do_not_fill_the_budget() -> None:
    """As those of batches of other lengths: what was freed is kept for the next of its size, up to as much again."""
    with vtensor.enabled(4000 * 4096, chunk=4096, min_size=1, device="cpu"):
        for size in range(400, 200, -1):
            torch.empty(size * 1024)
        stats = vtensor.memory_stats()
        assert stats["wanted_bytes.peak"] == 400 * 4096
        assert stats["held_bytes.peak"] <= 3 * 400 * 4096
        assert native.load().validate() == ""


def test_tensors_used_in_place_need_few_mappings() -> None:
    """The kernel has 65,530 for a process: one for each chunk of the second such tensor ended it."""

    def mappings() -> int:
        return len(Path("/proc/self/maps").read_text().splitlines())

    with vtensor.enabled("1MiB", chunk=4096, min_size=1, device="cpu"):
        for _ in range(3):
            before = mappings()
            tensor = torch.empty(3000 * 4096, dtype=torch.uint8)
            assert vtensor.residency(tensor).borrowed > 2000
            assert mappings() < before + 300
            del tensor


def test_a_child_may_end_sessions_whatever_other_threads_were_doing() -> None:
    native.load()
    with lifecycle._lock:  # as another thread that enables has it
        forked: list[int] = []

        def fork() -> None:
            if (child := os.fork()) == 0:
                signal.alarm(20)
                vtensor.disable()
                os._exit(0)
            forked.append(os.waitpid(child, 0)[1])

        other = threading.Thread(target=fork)
        other.start()
        other.join()
    assert forked == [0]


def away(tensor: torch.Tensor) -> int:
    found = vtensor.residency(tensor)
    return found.chunks - found.resident


@pytest.mark.parametrize(("granularity", "left"), [("chunk", 2), ("tensor", 4)])
def test_granularity_says_how_much_of_a_victim_leaves(
    granularity: str, left: int, everything: Callable[..., None]
) -> None:
    everything(10 * PAGE, policy="lru", granularity=granularity)
    first, second, third = (torch.ones(4 * PAGE, dtype=torch.uint8) for _ in range(3))
    assert [away(each) for each in (first, second, third)] == [left, 0, 0]


@pytest.mark.parametrize(("policy", "leaves"), [("lru", [1, 0]), ("size_staleness", [0, 1])])
def test_policy_says_who_leaves(policy: str, leaves: list[int], everything: Callable[..., None]) -> None:
    everything(12 * PAGE, policy=policy)
    old, large = (torch.ones(pages * PAGE, dtype=torch.uint8) for pages in (1, 8))
    new = torch.ones(4 * PAGE, dtype=torch.uint8)
    assert [away(each) for each in (old, large, new)] == [*leaves, 0]


def test_a_link_limits_copies_each_way(everything: Callable[..., None]) -> None:
    everything(8 * PAGE, link="1MB/s", policy="lru")
    first = torch.ones(8 * PAGE, dtype=torch.uint8)
    begun = time.perf_counter()
    second = torch.ones(8 * PAGE, dtype=torch.uint8)
    assert first.sum() == 8 * PAGE and second.numel() == 8 * PAGE
    took, stats = time.perf_counter() - begun, vtensor.memory_stats()
    assert stats["moved_in_bytes"] >= 8 * PAGE and took > 2 * 8 * PAGE / 1e6
