"""Several processes, each a budget of its own: the bits of DistributedDataParallel without one."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from torch import distributed, nn

import vtensor
from vtensor import ConfigError, HarmonyError

from .torchrun import torchrun

SCRIPT = """
import hashlib, os, sys
import torch, vtensor
from torch import distributed, nn
sys.path.insert(0, os.environ["PYTHONPATH"])
from tests.harmony.models import MODELS

how, name, dies = sys.argv[1:]
torch.set_num_threads(1)
if how != "ddp":
    budgets = how.split(",")  # one for each, or one for all
    budget = budgets[int(os.environ["RANK"]) % len(budgets)]
    vtensor.enable(budget, chunk=4096, min_size=1024, host="256MiB", policy="lru")
distributed.init_process_group("gloo")
rank, size, count = distributed.get_rank(), distributed.get_world_size(), 2
torch.manual_seed(0 if how == "ddp" else rank)  # Harmony begins with the first one's weights
model, batch, loss = MODELS[name]()
model.train()
model.register_buffer("order", torch.randperm(50))  # drawn, and a tensor that the program exchanges
model.register_buffer("average", torch.zeros(50))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
if how == "ddp":
    wrapped = nn.parallel.DistributedDataParallel(model, find_unused_parameters=name == "experts")
else:
    trainer = vtensor.Harmony(model, optimizer, loss=loss, microbatches=count, data_parallel=True)
for step in range(3):
    torch.manual_seed(100 * step + rank)
    if dies == "yes" and rank == 1 and step == 1:
        os._exit(3)
    data = batch()
    model.average = 0.9 * model.average + rank + 1
    if how == "ddp":
        from vtensor.harmony.microbatches import cut
        parts = cut(data, count)
        with wrapped.no_sync():
            (loss(wrapped, parts[0]) / count).backward()
        (loss(wrapped, parts[1]) / count).backward()
        optimizer.step()
        optimizer.zero_grad()
    else:
        trainer.step(data)
digest = hashlib.sha256(b"".join(v.detach().numpy().tobytes() for v in model.state_dict().values())).hexdigest()
evictions = 0 if how == "ddp" else vtensor.memory_stats()["evictions"]
os.write(1, f"digest {rank} {digest} {evictions}\\n".encode())  # at once: all write to the same pipe
distributed.destroy_process_group()
os._exit(0)
"""


def digests(tmp_path: Path, processes: int, how: str, name: str) -> tuple[set[str], int]:
    done = torchrun(SCRIPT, tmp_path, processes, how, name, "no")
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("digest")]
    assert len(lines) == processes
    return {line[2] for line in lines}, min(int(line[3]) for line in lines)


@pytest.mark.parametrize("name", ["gpt2"])
def test_the_bits_of_ddp(tmp_path: Path, name: str) -> None:
    plain, _ = digests(tmp_path, 2, "ddp", name)
    managed, evictions = digests(tmp_path, 2, "600KiB", name)
    assert managed == plain and len(plain) == 1
    assert evictions > 0


@pytest.mark.long
@pytest.mark.parametrize("name", ["bert", "resnet", "experts"])
def test_other_models(tmp_path: Path, name: str) -> None:
    """Running statistics; layers that one process' microbatches use and the other's do not."""
    plain, _ = digests(tmp_path, 2, "ddp", name)
    managed, _ = digests(tmp_path, 2, "600KiB", name)
    assert managed == plain


@pytest.mark.long
def test_budgets_that_differ(tmp_path: Path) -> None:
    """All have the packs of the least: collectives are counted by packs."""
    assert digests(tmp_path, 2, "600KiB,64MiB", "gpt2")[0] == digests(tmp_path, 2, "ddp", "gpt2")[0]


@pytest.mark.long
def test_four_processes(tmp_path: Path) -> None:
    ample, evictions = digests(tmp_path, 4, "64MiB", "gpt2")
    assert evictions == 0
    for budget in ("2MiB", "600KiB"):
        assert digests(tmp_path, 4, budget, "gpt2")[0] == ample


def test_a_process_that_dies_ends_the_others(tmp_path: Path) -> None:
    begun = time.monotonic()
    done = torchrun(SCRIPT, tmp_path, 2, "600KiB", "gpt2", "yes")
    assert done.returncode != 0
    assert time.monotonic() - begun < 60
    assert "exitcode: 3" in done.stderr or "exitcode  : 3" in done.stderr


def test_what_cannot_be() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ConfigError, match="init_process_group"):
        vtensor.Harmony(model, optimizer, loss=lambda m, x: m(x).sum(), microbatches=2, data_parallel=True)


def test_sparse_gradients_are_refused_in_words(tmp_path: Path) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = nn.Sequential(nn.Embedding(10, 8, sparse=True), nn.Linear(8, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer = vtensor.Harmony(
            model, optimizer, loss=lambda m, x: m(x).sum(), microbatches=2, data_parallel=True, layers=["0", "1"]
        )
        with pytest.raises(HarmonyError, match="sparse=False"):
            trainer.step(torch.arange(8))
    finally:
        distributed.destroy_process_group()


def test_a_wrapped_model_is_refused(tmp_path: Path) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
        with pytest.raises(ConfigError, match="pass the module itself"):
            vtensor.Harmony(
                model,
                torch.optim.SGD(model.parameters(), lr=0.1),
                loss=lambda m, x: m(x).sum(),
                microbatches=2,
                data_parallel=True,
            )
    finally:
        distributed.destroy_process_group()


ONE_WRITES = """
import hashlib, os
import torch, vtensor
from torch import distributed, nn

torch.set_num_threads(1)
distributed.init_process_group("gloo")
rank = distributed.get_rank()

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.average = nn.Linear(8, 8).requires_grad_(False)

    def forward(self, x):
        if rank == 0:  # an average of weights, which one process keeps for all
            for average, weight in zip(self.average.parameters(), self.layers[0].parameters()):
                average.data.lerp_(weight.data, 0.1)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x

torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.layers.parameters(), lr=0.1)
trainer = vtensor.Harmony(
    model, optimizer, loss=lambda model, x: model(x).square().mean(), microbatches=4, packs=2, data_parallel=True
)
for step in range(4):
    torch.manual_seed(10 * step + rank)
    trainer.step(torch.randn(16, 8))
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.layers.parameters())).hexdigest()
os.write(1, f"digest {rank} {digest} {len(trainer.packs)}\\n".encode())
distributed.destroy_process_group()
os._exit(0)
"""


def test_what_one_process_cannot_do_by_turns_no_process_does(tmp_path: Path) -> None:
    """They would wait for each other at other collectives."""
    done = torchrun(ONE_WRITES, tmp_path, 2)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("digest")]
    assert len(lines) == 2 and lines[0][2:] == lines[1][2:] and lines[0][3] == "0"
