"""Updates computed in the host's memory: the same bits, and weights and states that are copied out never."""

from __future__ import annotations

import copy
import ctypes
import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import vtensor
from vtensor import ConfigError, HarmonyError, native
from vtensor.addresses import address_of
from vtensor.harmony.hosting.hosted import where_to_update
from vtensor.harmony.microbatches import cut

from ..identity import PAGE, check_identity, mostly_beyond
from .models import MODELS, OPTIMIZERS, accumulate, gpt2
from .torchrun import torchrun


@pytest.fixture
def small() -> Iterator[None]:
    """A budget that holds a part of the models here."""
    with vtensor.enabled("600KiB", chunk=PAGE, min_size=PAGE // 2, host="256MiB", policy="lru"):
        yield


def trained(name: str, optimizer: Callable[[Any], torch.optim.Optimizer], steps: int = 4, **options: Any) -> Any:
    """A program for check_identity: losses, weights and states after so many steps."""

    def program() -> Any:
        model, batch, loss = MODELS[name]()
        model.train()
        made = optimizer(model.parameters())
        on = "host" if vtensor.is_enabled() else "device"
        trainer = vtensor.Harmony(model, made, loss=loss, microbatches=3, optimizer_on=on, **options)
        losses = []
        for _ in range(steps):
            losses.append(trainer.step(batch()))
            vtensor.planning.wait_for_plan()
        return losses, model.state_dict(), made.state_dict(), torch.get_rng_state()

    return program


@pytest.mark.parametrize("name", ["gpt2", "resnet"])
def test_the_same_bits(name: str) -> None:
    """Tied weights; running statistics, and kernels laid out by channels."""
    check_identity(trained(name, OPTIMIZERS["adamw"]), (0.4,), min_size=PAGE // 2)


@pytest.mark.long
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", sorted(MODELS.keys() - {"albert", "experts"}))
def test_every_model_and_optimizer(name: str, optimizer: str) -> None:
    check_identity(trained(name, OPTIMIZERS[optimizer], 5), (0.75, 0.5, 0.3), min_size=PAGE // 2)


@pytest.mark.parametrize("options", [{"clip_norm": 0.1}, {"update": "together"}, {"recompute": True}], ids=str)
def test_however_it_is_updated(options: dict[str, Any]) -> None:
    check_identity(trained("gpt2", OPTIMIZERS["adamw"], 3, **options), (0.5,), min_size=PAGE // 2)


@mostly_beyond
def test_on_an_ordered_device(late: bool) -> None:
    check_identity(trained("gpt2", OPTIMIZERS["adamw"]), (0.5,), min_size=PAGE // 2, overdraw=not late)


def moved(on: str) -> tuple[int, int]:
    """Bytes out and in of a step."""
    with vtensor.enabled("1200KiB", chunk=PAGE, min_size=1, host="1GiB", policy="lru"):
        torch.manual_seed(0)
        model, batch, loss = gpt2()
        trainer = vtensor.Harmony(
            model,
            torch.optim.AdamW(model.parameters()),
            loss=loss,
            microbatches=4,
            recompute=True,
            optimizer_on=on,  # type: ignore[arg-type]
        )
        for step in range(3):
            if step == 2:
                before = vtensor.memory_stats()
            trainer.step(batch())
        after = vtensor.memory_stats()
        native.load().validate()
    return tuple(after[name] - before[name] for name in ("moved_out_bytes", "moved_in_bytes"))  # type: ignore[return-value]


def test_weights_and_states_are_never_copied_out() -> None:
    device, host = moved("device"), moved("host")
    assert host[0] < 0.3 * device[0] and host[1] < 0.7 * device[1]


def test_the_program_may_write_weights_between_steps(small: None) -> None:
    torch.manual_seed(0)
    model, batch, loss = gpt2()
    other = copy.deepcopy(model)
    one, two = (torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (model, other))
    trainer = vtensor.Harmony(model, one, loss=loss, microbatches=2, optimizer_on="host")
    for step in range(4):
        data = batch()
        trainer.step(data)
        accumulate(other, two, loss, cut(data, 2))
        for trains in (model, other):
            with torch.no_grad():
                if step == 0:
                    for p in trains.parameters():
                        p.clamp_(-0.05, 0.05)
                if step == 1:  # past version counters, and past operations
                    next(trains.parameters()).data.mul_(0.5)
                    list(trains.parameters())[1].detach().numpy()[:] *= 2
        if step == 2:  # as from a checkpoint
            for trains, optimizer in ((model, one), (other, two)):
                trains.load_state_dict({k: v * 0.9 for k, v in trains.state_dict().items()})
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        for p, q in zip(model.parameters(), other.parameters(), strict=True):
            assert torch.equal(p, q), step


def test_weights_outlive_the_trainer(small: None) -> None:
    model, batch, loss = gpt2()
    trainer = vtensor.Harmony(
        model, torch.optim.SGD(model.parameters(), 0.1), loss=loss, microbatches=2, optimizer_on="host"
    )
    trainer.step(batch())
    module = native.load()
    homes = dict(trainer._hosted._homes)
    lent = [p for p, home in homes.items() if module.lent(address_of(p), home.data_ptr(), home.nbytes)]
    assert lent
    before = [p.detach().clone() for p in model.parameters()]
    del trainer
    gc.collect()
    assert not any(module.lent(address_of(p), homes[p].data_ptr(), homes[p].nbytes) for p in lent)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    assert module.validate() == ""


def test_weights_outlive_the_session() -> None:
    with vtensor.enabled("600KiB", chunk=PAGE, min_size=PAGE // 2, host="256MiB", policy="lru"):
        model, batch, loss = gpt2()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        trainer = vtensor.Harmony(model, optimizer, loss=loss, microbatches=2, optimizer_on="host")
        trainer.step(batch())
        before = [p.detach().clone() for p in model.parameters()]
    del trainer, optimizer
    gc.collect()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    with torch.no_grad():
        next(model.parameters()).add_(1)


def steps_after_the_session() -> None:
    torch.manual_seed(0)
    with vtensor.enabled("600KiB", chunk=PAGE, min_size=PAGE // 2, host="256MiB", policy="lru"):
        model, batch, loss = gpt2()
        other = copy.deepcopy(model)
        one, two = (torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (model, other))
        trainer = vtensor.Harmony(model, one, loss=loss, microbatches=2, optimizer_on="host")
        data = [batch() for _ in range(3)]
        trainer.step(data[0])
    for step in data[1:]:
        trainer.step(step)
    for step in data:
        accumulate(other, two, loss, cut(step, 2))
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)
        os.pwrite(os.memfd_create("weights"), p.detach().numpy(), 0)  # a system call finds it where it is


def test_steps_after_the_session() -> None:
    steps_after_the_session()


def test_steps_after_a_session_on_an_ordered_device(late: bool) -> None:
    """There nobody would see that a kernel reads what is not there."""
    steps_after_the_session()


def test_two_trainers_of_the_same_weights_take_turns(small: None) -> None:
    torch.manual_seed(0)
    model, batch, loss = gpt2()
    other = copy.deepcopy(model)
    one, two = (torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (model, other))
    trainers = [vtensor.Harmony(model, one, loss=loss, microbatches=k, optimizer_on="host") for k in (2, 4)]
    for step in range(4):
        data = batch()
        trainers[step % 2].step(data)
        accumulate(other, two, loss, cut(data, (2, 4)[step % 2]))
        for p, q in zip(model.parameters(), other.parameters(), strict=True):
            assert torch.equal(p, q), step


def test_an_update_that_fails_half_way_leaves_whole_tensors(small: None) -> None:
    model, batch, loss = gpt2()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    trainer = vtensor.Harmony(model, optimizer, loss=loss, microbatches=2, optimizer_on="host", update="together")
    trainer.step(batch())
    before = [p.detach().clone() for p in model.parameters()]
    plain, updated = optimizer.step, [p for p in model.parameters() if p.numel() > PAGE][:3]

    def fail(*_: Any) -> None:
        with torch.no_grad():
            for p in updated:
                p.add_(1.0)
        raise RuntimeError("half way")

    optimizer.step = fail
    with pytest.raises(RuntimeError, match="half way"):
        trainer.step(batch())
    optimizer.step = plain
    for p, value in zip(model.parameters(), before, strict=True):
        assert torch.equal(p, value + 1 if any(p is one for one in updated) else value)


def test_what_fails_leaves_weights_where_they_are(small: None) -> None:
    model, batch, loss = gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    trainer = vtensor.Harmony(model, optimizer, loss=loss, microbatches=2, optimizer_on="host")
    trainer.step(batch())
    before = [(address_of(p), p.detach().clone()) for p in model.parameters()]

    def fail(*_: Any) -> None:
        raise RuntimeError("in the optimizer")

    handle = optimizer.register_step_pre_hook(fail)
    with pytest.raises(RuntimeError, match="in the optimizer"):
        trainer.step(batch())
    handle.remove()
    for p, (address, value) in zip(model.parameters(), before, strict=True):
        assert address_of(p) == address and torch.equal(p, value)
    optimizer.zero_grad()
    trainer.step(batch())


def test_weights_of_another_type_are_refused(small: None) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    trainer = vtensor.Harmony(
        model, torch.optim.SGD(model.parameters(), lr=0.1), loss=lambda m, x: m(x).sum(), microbatches=2,
        optimizer_on="host",
    )  # fmt: skip
    trainer.step(torch.randn(4, 64))
    model.double()
    with pytest.raises(HarmonyError, match="has become one of"):
        trainer.step(torch.randn(4, 64).double())
    assert all(p.grad is None for p in model.parameters())


def test_a_weight_needed_later_is_missed_as_ever(small: None) -> None:
    """Autograd says so if somebody kept a graph that needs weights of before the update."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    trainer = vtensor.Harmony(
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        loss=lambda m, x: m(x).sum(),
        microbatches=2,
        optimizer_on="host",
    )
    kept = model(torch.ones(4, 64, requires_grad=True)).sum()
    trainer.step(torch.ones(4, 64))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept.backward()


def test_where_it_is_computed_by_itself(tmp_path: Path) -> None:
    weights = [nn.Parameter(torch.zeros(1 << 20))]
    assert where_to_update("auto", weights) == "device"
    with pytest.raises(ConfigError, match=r"needs vtensor\.enable"):
        where_to_update("host", weights)
    with pytest.raises(ConfigError, match="choose one of auto, device, host"):
        where_to_update("gpu", weights)  # type: ignore[arg-type]
    with vtensor.enabled("4MiB"):
        assert where_to_update("auto", weights) == "host"
        assert where_to_update("device", weights) == "device"
    with vtensor.enabled("32MiB"):
        assert where_to_update("auto", weights) == "device"
        assert where_to_update("host", weights) == "host"
    with vtensor.enabled("4MiB", spill_dir=tmp_path):
        assert where_to_update("auto", weights) == "device"
    with vtensor.enabled("4MiB", link="1GB/s"):
        assert where_to_update("auto", weights) == "device"


SCRIPT = """
import hashlib, io, os, sys
import torch, vtensor
from torch import distributed, nn
sys.path.insert(0, os.environ["PYTHONPATH"])
from tests.harmony.models import MODELS
from vtensor.harmony.hosting.neighbours import Neighbours

on, how, apart = sys.argv[1:]
torch.set_num_threads(1)
vtensor.enable("600KiB", chunk=4096, min_size=1024, host="256MiB", policy="lru")
distributed.init_process_group("gloo")
rank = distributed.get_rank()
if apart == "apart":  # as if they could not open each other's memory
    from vtensor.harmony.hosting import host_memory
    host_memory.Shared.path = property(lambda self: "/nowhere" if on == "host" else "")
torch.manual_seed(rank)
model, batch, loss = MODELS["gpt2"]()
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
trainer = vtensor.Harmony(model, optimizer, loss=loss, microbatches=2, optimizer_on=on, **{how: True})
for step in range(3):
    torch.manual_seed(100 * step + rank)
    trainer.step(batch())
    if step == 1:  # as from a checkpoint
        trainer.gather()
        saved = io.BytesIO()
        torch.save((model.state_dict(), optimizer.state_dict()), saved)
        saved.seek(0)
        weights, states = torch.load(saved)
        model.load_state_dict(weights)
        optimizer.load_state_dict(states)
trainer.gather()
own = sum(1 for p in model.parameters() if p in optimizer.state)
digest = hashlib.sha256(repr(list(optimizer.state_dict()["state"])).encode())  # and their order
for value in (*model.parameters(), *(s for p in model.parameters() for s in optimizer.state[p].values())):
    digest.update(value.detach().numpy().tobytes())
os.write(1, f"digest {rank} {digest.hexdigest()}\\n".encode())
distributed.barrier()
distributed.destroy_process_group()
os._exit(0)
"""


def digests(folder: Path, processes: int, on: str, how: str, apart: str = "") -> set[str]:
    done = torchrun(SCRIPT, folder, processes, on, how, apart)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("digest")]
    assert len(lines) == processes
    return {line[2] for line in lines}


def test_one_copy_of_the_weights_for_several_processes(tmp_path: Path) -> None:
    device = digests(tmp_path, 2, "device", "data_parallel")
    assert len(device) == 1
    assert digests(tmp_path, 2, "host", "data_parallel") == device


def test_what_is_lent_stays_lent_however_often_it_is_read() -> None:
    """Past torch's operations, in a circle: used in place, it would have to be copied to be written, too."""
    count = 1 << 18
    home = torch.zeros(count)
    with vtensor.enabled("1MiB", chunk=PAGE, min_size=1, policy="lru"):
        module = native.load()
        weight, other = torch.zeros(count), torch.zeros(count)
        where = address_of(weight)
        assert module.lend(where, home.data_ptr(), home.nbytes)
        for _ in range(3):
            ctypes.string_at(where, home.nbytes)
            module.parts.evict_all()
            other + 1
            assert module.lent(where, home.data_ptr(), home.nbytes)
        module.take_back(home.data_ptr(), home.nbytes)


def test_one_access_reads_what_is_lent_in_two_chunks_where_there_is_one() -> None:
    """They threw each other out for ever."""
    home = torch.arange(2 * PAGE, dtype=torch.uint8)
    with vtensor.enabled(PAGE, chunk=PAGE, min_size=1, policy="lru"):
        module = native.load()
        weight = torch.zeros(2 * PAGE, dtype=torch.uint8)
        where = address_of(weight)
        assert module.lend(where, home.data_ptr(), home.nbytes)
        module.parts.evict_all()
        across = ctypes.c_uint64.from_address(where + PAGE - 4).value
        assert across == int.from_bytes(bytes(home[PAGE - 4 : PAGE + 4].tolist()), "little")
        module.take_back(home.data_ptr(), home.nbytes)


FAILS = (
    SCRIPT.partition("for step in range(3)")[0]
    + """
trainer.step(batch())
if rank == 1:
    def fail(*_): raise RuntimeError("one's own")
    optimizer.step = fail
try:
    trainer.step(batch())
except (RuntimeError, vtensor.HarmonyError) as error:
    os.write(1, f"{rank}: {error}\\n".encode())
os._exit(0)
"""
)


def test_all_processes_are_told_when_one_cannot_update(tmp_path: Path) -> None:
    done = torchrun(FAILS, tmp_path, 2, "host", "data_parallel", "")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "1: one's own" in done.stdout
    assert "0: another process failed in its part of an update" in done.stdout


@pytest.mark.long
def test_other_processes(tmp_path: Path) -> None:
    """Four; those that cannot share memory; each with layers of its own."""
    assert digests(tmp_path, 4, "host", "data_parallel") == digests(tmp_path, 4, "device", "data_parallel")
    two = digests(tmp_path, 2, "device", "data_parallel")
    assert digests(tmp_path, 2, "host", "data_parallel", "apart") == two
    assert digests(tmp_path, 2, "host", "pipeline") == digests(tmp_path, 2, "device", "pipeline")


@pytest.mark.parametrize("how", ["channels_last", "columns"])
def test_weights_that_lie_otherwise_since(how: str, small: None) -> None:
    """The bytes of one layout are other values in another."""

    def moved(model: nn.Module) -> None:
        if how == "channels_last":
            model.to(memory_format=torch.channels_last)
        for p in model.parameters():
            if how == "columns" and p.dim() == 2:
                p.data = p.data.t().contiguous().t()

    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return model(x).square().mean()

    model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, 16), nn.Linear(16, 4))
    twin = copy.deepcopy(model)
    one, two = (torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (model, twin))
    trainer = vtensor.Harmony(model, one, loss=loss, microbatches=2, optimizer_on="host", layers=["0", "1", "3", "4"])
    for step in range(3):
        if step == 1:
            moved(model)
            moved(twin)
        batch = torch.randn(4, 4, 8, 8)
        trainer.step(batch.clone())
        accumulate(twin, two, loss, list(cut(batch, 2)))
        assert all(map(torch.equal, model.parameters(), twin.parameters()))
