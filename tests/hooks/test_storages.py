"""Storages are saved and copied at their address: it leads to their data meanwhile, and nothing is left of that."""

from __future__ import annotations

import copy
import ctypes
import gc
import io
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import vtensor
from vtensor import native
from vtensor.addresses import address_of
from vtensor.hooks.storages import _mapped

from ..warm import python

PAGE = 4096
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
LARGE = 64 * PAGE  # more than Python and Rust gather before they ask the system to write


@pytest.fixture(autouse=True)
def session() -> Iterator[None]:
    with vtensor.enabled("4MiB", device="cpu", chunk=PAGE, min_size=1, policy="lru"):
        native.load().observe()
        yield


def away(*tensors: torch.Tensor) -> None:
    native.load().parts.evict_all()
    for tensor in tensors:
        found = vtensor.residency(tensor)
        assert found.managed and found.resident == 0 and found.borrowed == 0


def save_as_zip(tensor: torch.Tensor, path: Path) -> None:
    torch.save({"x": tensor}, path)


def save_as_it_was(tensor: torch.Tensor, path: Path) -> None:
    torch.save({"x": tensor}, path, _use_new_zipfile_serialization=False)


def save_as_safetensors(tensor: torch.Tensor, path: Path) -> None:
    save_file = pytest.importorskip("safetensors.torch").save_file
    save_file({"x": tensor}, path)


class Scaled(torch.nn.Module):
    """Holds it as neither parameter nor buffer."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__()
        self.x = tensor
        self.linear = torch.nn.Linear(128, 128)

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        return self.x * self.linear(y).sum()


def save_as_script(tensor: torch.Tensor, path: Path) -> None:
    module = torch.jit.script(Scaled(tensor))
    native.load().parts.evict_all()
    module.save(str(path))


def load(path: Path) -> Any:
    if path.suffix == ".script":
        return {"x": torch.jit.load(str(path)).x}
    if path.suffix == ".safetensors":
        return pytest.importorskip("safetensors.torch").load_file(path)
    return torch.load(path)


SAVERS: dict[str, Callable[[torch.Tensor, Path], None]] = {
    "saved.pt": save_as_zip,
    "saved.old": save_as_it_was,
    "saved.safetensors": save_as_safetensors,
    "saved.script": save_as_script,
}


@pytest.mark.parametrize("name", SAVERS)
def test_what_was_saved_comes_and_goes_as_before(name: str, tmp_path: Path) -> None:
    """An address that is given away for good stands in the way of plans."""
    tensor = torch.randn(LARGE // 4)
    expected = tensor.tolist()
    for _ in range(2):
        away(tensor)
        SAVERS[name](tensor, tmp_path / name)
        assert vtensor.residency(tensor).borrowed == 0
    away(tensor)  # once more: nobody is to find its data there
    found = load(tmp_path / name)["x"]
    assert found.tolist() == expected == tensor.tolist()
    assert native.load().validate() == ""


def test_what_was_loaded_comes_and_goes_as_anything_else(tmp_path: Path) -> None:
    """An optimizer goes on with the tensors that were loaded."""
    parameter = torch.nn.Parameter(torch.randn(LARGE // 4))
    parameter.grad = torch.ones_like(parameter)
    optimizers = [torch.optim.Adam([parameter]) for _ in range(2)]
    optimizers[0].step()
    torch.save(optimizers[0].state_dict(), tmp_path / "saved.pt")
    optimizers[1].load_state_dict(torch.load(tmp_path / "saved.pt"))
    away(parameter, *(optimizers[1].state[parameter][name] for name in ("exp_avg", "exp_avg_sq")))


def test_tied_weights_are_found_by_address_and_not_given_away(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=1, n_embd=64, n_head=1, vocab_size=1000, n_positions=8)
    model = transformers.GPT2LMHeadModel(config)
    model.save_pretrained(tmp_path / "model")
    away(*(p for p in model.parameters() if vtensor.residency(p).managed))


@pytest.mark.parametrize(
    ("module", "compares"),
    [
        ("torch.distributed.fsdp._fully_shard._fsdp_param", True),
        ("torch.nn.modules.rnn", True),
        ("transformers.integrations.some_kernel", False),
        ("__main__", False),
    ],
)
def test_who_only_compares_addresses(module: str, compares: bool) -> None:
    """Else sharded weights, and those of LSTMs on a GPU, would stay where they are for good."""
    tensor = torch.ones(LARGE // 4)
    asks: dict[str, Any] = {"__name__": module}
    exec("def ask(tensor): return tensor.data_ptr()", asks)
    assert asks["ask"](tensor) == address_of(tensor)
    native.load().parts.evict_all()
    assert (vtensor.residency(tensor).borrowed == 0) == compares


def test_an_address_that_was_given_away_before_stays_so(tmp_path: Path) -> None:
    tensor = torch.ones(LARGE // 4)
    array = tensor.numpy()
    save_as_zip(tensor, tmp_path / "saved.pt")
    native.load().parts.evict_all()
    with tempfile.TemporaryFile() as file:
        assert os.write(file.fileno(), memoryview(array).cast("B")) == LARGE


def at_once(*works: Callable[[], Any]) -> None:
    with ThreadPoolExecutor(len(works)) as pool:
        for done in [pool.submit(work) for work in works]:
            done.result()


def test_given_away_for_good_while_it_is_saved() -> None:
    """One waits for what arrives, the other comes meanwhile; NumPy's writes are never lost."""
    core = native.load()
    core.see("all")
    for _ in range(40):
        tensor = torch.randn(LARGE // 4)
        away(tensor)
        arrays: list[Any] = []
        at_once(tensor.sum, lambda: torch.save(tensor, io.BytesIO()), lambda: arrays.append(tensor.numpy()))  # noqa: B023
        tensor.fill_(3.0)
        arrays[0][0] = 12345.0
        core.parts.drop_all()
        core.parts.evict_all()
        assert tensor[0] == 12345.0


@pytest.mark.parametrize("name", SAVERS)
def test_saving_beside_operations_that_need_the_room(name: str, tmp_path: Path) -> None:
    """What is being written by the system does not move."""
    tensors = [torch.full((LARGE // 4,), float(k)) for k in range(20)]

    def save() -> None:
        for _ in range(5):
            for k in (0, 7, 19):
                SAVERS[name](tensors[k], tmp_path / name)
                assert load(tmp_path / name)["x"][0] == k

    def work() -> None:
        for _ in range(20):
            assert sum(float(tensor.sum()) for tensor in tensors) == LARGE / 4 * 190

    at_once(save, work)
    assert native.load().validate() == ""


class Slow(io.FileIO):
    """As a network's: operations of other threads come and go during each call."""

    def __init__(self, path: Path, mode: str, meanwhile: Callable[[], Any]) -> None:
        super().__init__(path, mode)
        self.meanwhile = meanwhile

    def write(self, data: Any) -> int:
        self.meanwhile()
        return super().write(data)

    def readinto(self, memory: Any) -> int:
        self.meanwhile()
        return super().readinto(memory)


@pytest.mark.parametrize("when", ["never", "before", "meanwhile"])
def test_a_slow_file_beside_operations_that_need_the_room(when: str, tmp_path: Path) -> None:
    """Whether NumPy has the address, too."""
    tensors = [torch.full((LARGE // 4,), float(k)) for k in range(20)]
    arrays = [tensors[7].numpy()] if when == "before" else []

    def meanwhile() -> None:
        if when == "meanwhile":
            arrays.append(tensors[7].numpy())
        at_once(lambda: [tensor.sum() for tensor in tensors])

    path = tmp_path / "saved.pt"
    with Slow(path, "w", meanwhile) as file:
        torch.save(tensors[7], file)
    assert path.stat().st_size > LARGE
    with Slow(path, "r", meanwhile) as file:
        loaded = torch.load(file)
    assert torch.equal(loaded, tensors[7])
    if when == "never":
        away(tensors[7], loaded)
    assert native.load().validate() == ""


def test_an_interrupt_leaves_nothing() -> None:
    """Python raises it as soon as the core has answered."""
    core, tensor = native.load(), torch.ones(LARGE // 4)
    away(tensor)

    class Given:
        def __init__(self) -> None:
            self.given = core.Given()

        def add(self, addresses: list[int]) -> None:
            self.given.add(addresses)
            raise KeyboardInterrupt

        def end(self) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), _mapped([address_of(tensor)], SimpleNamespace(Given=Given)):  # type: ignore[arg-type]
        pass
    gc.collect()
    away(tensor)


def test_a_saver_that_fails_leaves_nothing(tmp_path: Path) -> None:
    tensor = torch.ones(LARGE // 4)
    away(tensor)

    class Full:
        def write(self, _data: Any) -> int:
            raise OSError("no space left")

    with pytest.raises((OSError, RuntimeError)):
        torch.save(tensor, Full())  # type: ignore[arg-type]
    assert vtensor.residency(tensor).borrowed == 0
    away(tensor)
    assert tensor.sum() == LARGE / 4


def test_the_address_of_a_storage_leads_there_for_good() -> None:
    storage = torch.ones(LARGE // 8).untyped_storage()
    storage.resize_(LARGE)
    address = storage.data_ptr()
    native.load().parts.evict_all()
    with tempfile.TemporaryFile() as file:
        assert os.write(file.fileno(), (ctypes.c_char * LARGE).from_address(address)) == LARGE


@pytest.mark.parametrize("what", ["tensor", "state_dict", "buffer"])
def test_a_deep_copy_counts_to_the_budget(what: str) -> None:
    module = torch.nn.Linear(128, 128)
    module.register_buffer("kept", torch.ones(128, 128))
    before = vtensor.memory_stats()["tensor_bytes.current"]
    made: Any = {
        "tensor": lambda: copy.deepcopy(module.weight.detach()),
        "state_dict": lambda: copy.deepcopy(module.state_dict()),
        "buffer": lambda: copy.deepcopy(module)._buffers["kept"],
    }[what]()
    copies = made.values() if isinstance(made, dict) else [made]
    assert all(vtensor.residency(tensor).managed for tensor in copies)
    assert vtensor.memory_stats()["tensor_bytes.current"] >= before + sum(tensor.nbytes for tensor in copies)
    away(module.weight, *copies)
    originals = {
        "tensor": [module.weight],
        "state_dict": [module.weight, module.bias, module.kept],
        "buffer": [module.kept],
    }[what]
    assert all(map(torch.equal, originals, copies))


def test_a_deep_copy_within_a_transform() -> None:
    """What torch.func makes there has no storage."""
    constant = torch.full((LARGE // 4,), 2.0)
    found = torch.func.grad(lambda x: (x * copy.deepcopy(constant)).sum())(torch.ones(LARGE // 4))
    assert torch.equal(found, constant)


AFTERWARDS = """
import faulthandler, os, tempfile
import torch, vtensor
from vtensor import native

faulthandler.enable()
vtensor.enable("4MiB", device="cpu", chunk=4096, min_size=1, policy="lru")
core = native.load()
core.observe()
touched, clean = torch.ones(1 << 16), torch.zeros(1 << 16)
of_mkldnn = torch.randn(2, 8, 32, 32).to_mkldnn()
core.parts.evict_all()
faulthandler.disable()
assert touched.tolist() == [1.0] * (1 << 16)
assert clean.sum() == 0
vtensor.disable()
with tempfile.TemporaryFile() as file:
    file.write(bytes([1]) * clean.nbytes)
    file.seek(0)
    assert os.readv(file.fileno(), [memoryview(clean.numpy()).cast("B")]) == clean.nbytes
del of_mkldnn
print("all is well")
"""


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no mkldnn")
def test_what_outlives_a_session_is_ordinary_memory() -> None:
    """Written by system calls, freed by whatever allocator there is; and faults are ours while there is a session."""
    done = subprocess.run([python(), "-c", AFTERWARDS], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "all is well" in done.stdout


ON_A_GPU = """
import torch, vtensor
from vtensor import native
from vtensor.hooks.storages import watch_storages
from vtensor.session import lifecycle

module = native.load()
lifecycle._start = lambda c: module.parts.start_late(
    c.budget_chunks, c.chunk, c.host, c.policy, c.min_size, 1, False, c.leaving, False)
vtensor.enable("32KiB", chunk=4096, min_size=1, host="64MiB", policy="lru")
watch_storages(module, "cuda")
victim = torch.full((1024,), 7.0)
seen = torch.empty(1).copy_(victim[:1])
others = [torch.full((1024,), float(k)).add_(0) for k in range(100, 140)]
assert vtensor.residency(victim).resident == 0
victim.untyped_storage().resize_(8192)
assert (victim + 0).tolist() == [7.0] * 1024
print("all is well")
"""


def test_what_is_resized_on_a_gpu_is_there() -> None:
    """It is copied past torch's dispatcher, and nothing faults."""
    done = subprocess.run([python(), "-c", ON_A_GPU], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "all is well" in done.stdout
