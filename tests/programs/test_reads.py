"""Reads and writes outside operations: numpy, DLPack, files, pickling, worker processes. Right data every time."""

from __future__ import annotations

import copy
import ctypes
import io
import os
import pickle
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import torch.multiprocessing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.data import DataLoader, TensorDataset

import vtensor
from vtensor import native

from ..warm import python

PAGE = 4096
ELEMENTS = 8 * PAGE // 4  # eight vTensors a tensor


def make_many(count: int = 12) -> list[torch.Tensor]:
    """More than the budget holds: the first of them are absent when this returns."""
    return [torch.full((ELEMENTS,), float(i)) for i in range(count)]


@pytest.fixture(params=["ram", "disk"])
def tight(request: pytest.FixtureRequest, tmp_path: Path, everything: Callable[..., None]) -> None:
    everything(20 * PAGE, **({"spill_dir": tmp_path} if request.param == "disk" else {}))


@pytest.mark.usefixtures("tight")
class TestReads:
    def test_numpy(self) -> None:
        tensors = make_many()
        assert vtensor.residency(tensors[0]).absent == 8
        for i, t in enumerate(tensors):
            assert (t.numpy() == i).all()

    def test_numpy_stays_right_while_others_come_and_go(self) -> None:
        tensors = make_many()
        views = [t.numpy() for t in tensors]
        for round_ in range(3):
            for i, t in enumerate(tensors):
                t.add_(1)
                views[i] += 1
            more = make_many(4)
            for i, view in enumerate(views):
                assert (view == i + 2 * (round_ + 1)).all()
                assert (tensors[i] == i + 2 * (round_ + 1)).all()
            del more

    def test_array_protocol(self) -> None:
        for i, t in enumerate(make_many()):
            assert numpy.asarray(t).sum() == i * ELEMENTS

    def test_dlpack(self) -> None:
        tensors = make_many()
        for i, t in enumerate(tensors):
            assert (numpy.from_dlpack(t) == i).all()
            assert (torch.from_dlpack(t) == i).all()

    def test_tolist(self) -> None:
        for i, t in enumerate(make_many()):
            assert t.tolist() == [float(i)] * ELEMENTS

    def test_data_ptr_from_c(self) -> None:
        tensors = make_many()
        sink = ctypes.create_string_buffer(ELEMENTS * 4)
        for i, t in enumerate(tensors):
            ctypes.memmove(sink, t.data_ptr(), ELEMENTS * 4)
            assert numpy.frombuffer(sink, dtype=numpy.float32)[ELEMENTS - 1] == i
        ctypes.memset(tensors[0].data_ptr(), 0, ELEMENTS * 4)
        make_many()
        assert (tensors[0] == 0).all()

    def test_write_by_the_kernel(self, tmp_path: Path) -> None:
        # write(2) does not fault into our handler: the data must be mapped, wherever it is.
        for i, t in enumerate(make_many()):
            path = tmp_path / f"{i}"
            with path.open("wb", buffering=0) as file:
                assert os.write(file.fileno(), memoryview(t.numpy())) == ELEMENTS * 4
            assert (numpy.fromfile(path, dtype=numpy.float32) == i).all()

    def test_read_by_the_kernel(self, tmp_path: Path) -> None:
        path = tmp_path / "values"
        numpy.full(ELEMENTS, 7.0, dtype=numpy.float32).tofile(path)
        tensors = make_many()
        with path.open("rb", buffering=0) as file:
            assert file.readinto(memoryview(tensors[0].numpy()).cast("B")) == ELEMENTS * 4
        others = make_many()
        assert (tensors[0] == 7).all() and (others[3] == 3).all()

    def test_save_and_load_a_state_dict_larger_than_the_budget(self, tmp_path: Path) -> None:
        state = {f"w{i}": t for i, t in enumerate(make_many())}
        torch.save(state, tmp_path / "state.pt")
        buffer = io.BytesIO()
        torch.save(state, buffer)
        buffer.seek(0)
        for loaded in (torch.load(tmp_path / "state.pt"), torch.load(buffer)):
            assert all((loaded[f"w{i}"] == i).all() for i in range(12))
        model = torch.nn.ModuleList(torch.nn.Linear(64, 128) for _ in range(6))
        torch.save(model.state_dict(), tmp_path / "model.pt")
        other = copy.deepcopy(model)
        torch.nn.init.zeros_(other[0].weight)
        other.load_state_dict(torch.load(tmp_path / "model.pt"))
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))

    def test_pickle_and_deepcopy(self) -> None:
        tensors = make_many()
        again = pickle.loads(pickle.dumps(tensors))
        copied = copy.deepcopy(tensors)
        for i in range(12):
            assert (again[i] == i).all() and (copied[i] == i).all()

    def test_shared_memory(self) -> None:
        tensors = make_many()
        for i, t in enumerate(tensors):
            t.share_memory_()
            assert t.is_shared() and (t == i).all()

    def test_a_child_process_receives_tensors(self) -> None:
        context = torch.multiprocessing.get_context("fork")
        queue, answers = context.Queue(), context.Queue()
        child = context.Process(target=_sum_them, args=(queue, answers))
        child.start()
        tensors = make_many(6)
        for t in tensors:
            queue.put(t)
        queue.put(None)
        assert [answers.get(timeout=60) for _ in tensors] == [float(i * ELEMENTS) for i in range(6)]
        child.join(60)
        assert child.exitcode == 0

    def test_data_loader_with_forked_workers(self) -> None:
        data = torch.arange(400 * 256, dtype=torch.float32).reshape(400, 256)
        labels = torch.arange(400)
        loader = DataLoader(TensorDataset(data, labels), batch_size=16, num_workers=2, shuffle=True)
        model = torch.nn.Linear(256, 256)
        for _ in range(2):
            seen = []
            for x, y in loader:
                assert torch.equal(x, torch.arange(256.0) + 256 * y[:, None])
                model(x).sum().backward()
                seen.extend(y.tolist())
            assert sorted(seen) == list(range(400))
        assert torch.equal(data, torch.arange(400 * 256, dtype=torch.float32).reshape(400, 256))

    def test_a_child_sees_the_moment_of_the_fork(self) -> None:
        tensors = make_many()
        view = tensors[2].numpy()  # exported: mapped in place while absent
        read, write = os.pipe()
        go_read, go_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            right = False
            try:
                os.read(go_read, 1)  # until the parent has changed everything
                right = all((t == i).all() for i, t in enumerate(tensors)) and (view == 2).all()
                for t in tensors:
                    t.mul_(2)
                right = bool(right and all((t == 2 * i).all() for i, t in enumerate(tensors)))
            finally:
                os.write(write, b"y" if right else b"n")
                os._exit(0)
        for t in tensors:
            t.add_(100)
        others = make_many()
        os.write(go_write, b"x")
        assert os.read(read, 1) == b"y"
        os.waitpid(pid, 0)
        assert all((t == i + 100).all() for i, t in enumerate(tensors))
        assert (view == 102).all()
        assert all((t == i).all() for i, t in enumerate(others))
        for end in (read, write, go_read, go_write):
            os.close(end)


def _sum_them(queue: Any, answers: Any) -> None:
    while (tensor := queue.get()) is not None:
        answers.put(tensor.sum().item())


def test_reads_never_take_part_in_a_budget_of_one_chunk(everything: Callable[..., None]) -> None:
    everything(PAGE)
    tensors = make_many(3)
    ctypes.memmove(tensors[0].data_ptr(), tensors[2].data_ptr(), ELEMENTS * 4)
    assert tensors[0].tolist() == tensors[2].tolist() == [2.0] * ELEMENTS


ASKED = {
    "empty_like": torch.empty_like,
    "zeros_like": torch.zeros_like,
    "ones_like": torch.ones_like,
    "full_like": lambda x: torch.full_like(x, 3.0),
    "rand_like": torch.rand_like,
    "randn_like": torch.randn_like,
    "randint_like": lambda x: torch.randint_like(x, 9),
    "new_empty": lambda x: x.new_empty(x.shape),
    "new_zeros": lambda x: x.new_zeros(x.shape),
    "new_ones": lambda x: x.new_ones(x.shape),
    "new_full": lambda x: x.new_full(x.shape, 3.0),
    "new_empty_strided": lambda x: x.new_empty_strided(x.shape, x.stride()),
}


@pytest.mark.parametrize("name", ASKED)
def test_who_is_asked_for_its_sizes_stays_away(name: str, everything: Callable[..., None]) -> None:
    everything(20 * PAGE)
    absent, *others = make_many()
    before = vtensor.residency(absent).absent
    made = ASKED[name](absent)
    assert before > 0 and vtensor.residency(absent).absent >= before
    assert made.shape == absent.shape and made.dtype == absent.dtype
    assert (absent == 0).all() and all((x == i).all() for i, x in enumerate(others, start=1))


def test_faults_are_counted_and_clean_memory_is_protected(everything: Callable[..., None]) -> None:
    everything(20 * PAGE)
    tensors = make_many()
    raw = (ctypes.c_float * ELEMENTS).from_address(torch._C.TensorBase.data_ptr(tensors[0]))  # past the doors
    assert raw[5] == 0.0
    assert vtensor.memory_stats()["faults"] >= 1
    assert (tensors[1] == 1).all()  # arrives clean, read-only
    raw_one = (ctypes.c_float * ELEMENTS).from_address(torch._C.TensorBase.data_ptr(tensors[1]))
    raw_one[0] = 42.0
    make_many()
    assert tensors[1][0] == 42 and native.load().validate() == ""


def test_a_real_segmentation_fault_still_ends_the_process() -> None:
    code = "import vtensor, ctypes; vtensor.enable('16MiB'); ctypes.string_at(16)"
    assert subprocess.run([python(), "-c", code], check=False, timeout=120).returncode == -signal.SIGSEGV


def test_who_serves_faults_of_his_own_goes_on_serving_them() -> None:
    """As runtimes do that use the signal (a JVM, WebAssembly): the second fault ended the program once."""
    code = """
import ctypes, mmap, signal, vtensor
libc = ctypes.CDLL(None)
pages = mmap.mmap(-1, 3 * 4096)
base = ctypes.addressof(ctypes.c_char.from_buffer(pages))
libc.mprotect(ctypes.c_void_p(base), ctypes.c_size_t(3 * 4096), 0)
served = []
@ctypes.CFUNCTYPE(None, ctypes.c_int)
def serve(number):
    libc.mprotect(ctypes.c_void_p(base + 4096 * len(served)), ctypes.c_size_t(4096), 3)
    served.append(number)
libc.signal(signal.SIGSEGV, serve)
vtensor.enable(8 * 4096, chunk=4096, min_size=1)
for page in range(3):
    ctypes.memset(base + 4096 * page, 1, 4096)
print(len(served))
"""
    done = subprocess.run([python(), "-c", code], check=False, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, "3"), done.stderr


def test_faulthandler_enabled_later_stays_quiet() -> None:
    code = """
import ctypes, faulthandler, torch, vtensor
vtensor.enable(8 * 4096, chunk=4096, min_size=1)
faulthandler.enable()
tensors = [torch.full((8192,), float(i)) for i in range(4)]
print((ctypes.c_float * 8192).from_address(torch._C.TensorBase.data_ptr(tensors[0]))[17])
"""
    done = subprocess.run([python(), "-c", code], check=False, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "0.0", "")


@pytest.mark.filterwarnings("error")
def test_tensors_without_memory_pass_the_doors() -> None:
    with vtensor.enabled("1MiB", chunk=4096, min_size=1), FakeTensorMode():
        fake = torch.empty(64, 64) + 1
        assert fake.untyped_storage().nbytes() == 4 * 64 * 64
