"""Collectives under a budget: another thread, or another stream, uses their tensors after the operation has returned.

gloo's threads read and write them by system calls, which do not fault where memory is not mapped: they fail.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import torch
from torch import distributed

import vtensor

from ..warm import python

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="torch was built without torch.distributed")

BEGIN = """
import hashlib, os, sys
import torch, vtensor
from torch import distributed, nn

rank, store, budget = int(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.set_num_threads(1)
if budget != "none":
    vtensor.enable(budget, chunk=4096, min_size=1, host="256MiB")
distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
torch.manual_seed(0)
"""
END = """
distributed.destroy_process_group()
sys.stdout.flush()
os._exit(0)  # one plain run in ten is aborted by torch while the interpreter ends ("terminate called ...")
"""
REPLICATED = """
model = nn.Sequential(*[nn.Linear(128, 128) for _ in range(6)])
parallel = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.1)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(6):
    data = torch.randn(256, 128, generator=torch.Generator().manual_seed(10 * step + rank))
    optimizer.zero_grad()
    parallel(data).square().mean().backward()
    optimizer.step()
if rank == 0:
    print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest())
    print(vtensor.memory_stats()["evictions"] if budget != "none" else 0)
"""


def two_processes(script: Path, budget: str) -> tuple[str, int]:
    """What rank 0 found, and the figure it printed after that."""
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    store = script.with_name(f"store-{budget}")
    processes = [
        subprocess.Popen(
            [python(), script, str(rank), store, budget], stdout=subprocess.PIPE, env=environment, text=True
        )
        for rank in range(2)
    ]
    try:
        out = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0]
    found, figure = out[0].split()
    return found, int(figure)


def the_same_in_both(folder: Path, program: str, budget: str) -> int:
    """Plain and under a budget, rank 0 finds the same; the figure that it prints beside that, under the budget."""
    script = folder / "program.py"
    script.write_text(BEGIN + program + END)
    plain, _ = two_processes(script, "none")
    managed, figure = two_processes(script, budget)
    assert managed == plain
    return figure


def test_data_parallel_training(tmp_path: Path) -> None:
    assert the_same_in_both(tmp_path, REPLICATED, "1MiB") > 0  # something left


def test_what_a_collective_was_given_stays(tmp_path: Path) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with vtensor.enabled("64KiB", chunk=4096, min_size=1, host="64MiB", policy="lru"):
            before = [torch.zeros(2048) for _ in range(16)]  # operations are observed from now on
            bucket = torch.ones(4096)
            work = distributed.all_reduce(bucket, async_op=True)
            others = [torch.full((2048,), float(i)) for i in range(32)]
            assert vtensor.residency(bucket).resident == 4
            work.wait()
            assert float(bucket.sum()) == 4096
            assert [float(other[7]) for other in others] == list(range(32))
            assert sum(float(other.sum()) for other in before) == 0
    finally:
        distributed.destroy_process_group()


@pytest.mark.parametrize("earlier", [True, False])
def test_so_does_what_it_was_given_before_memory_was_short(earlier: bool, tmp_path: Path) -> None:
    def begin() -> None:
        distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)

    if earlier:
        begin()
    try:
        with vtensor.enabled("128KiB", chunk=4096, min_size=1, host="64MiB", policy="lru"):
            if not earlier:
                begin()
            bucket = torch.ones(4096)
            distributed.all_reduce(bucket)
            others = [torch.full((2048,), float(i)) for i in range(32)]
            assert sum(float(other[7]) for other in others) == sum(range(32))
            assert vtensor.residency(bucket).resident == 4
    finally:
        distributed.destroy_process_group()


GATHERED = """
from torch.distributed import _functional_collectives as collectives

total, held = 0.0, []
for step in range(40):
    mine = torch.randn(400, 200, generator=torch.Generator().manual_seed(10 * step + rank))
    everybodys = collectives.all_gather_tensor(mine, 0, distributed.group.WORLD)
    part = collectives.reduce_scatter_tensor(mine, "sum", 0, distributed.group.WORLD)
    held = [torch.full((200, 200), float(step)) for _ in range(10)]  # while these go on
    total += float((everybodys + 0).sum()) + float((part + 0).sum())
if rank == 0:
    print(total.hex())
    print(vtensor.memory_stats()["evictions"] if budget != "none" else 0)
"""


def test_collectives_that_go_on_while_others_leave(tmp_path: Path) -> None:
    """gloo's own threads make tensors, too, which no operation of the program's was given."""
    assert the_same_in_both(tmp_path, GATHERED, "1MiB") > 0  # something left


SHARDED = """
from torch.distributed.fsdp import fully_shard

model = nn.Sequential(*[nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128)) for _ in range(4)])
mesh = distributed.device_mesh.init_device_mesh("cpu", (2,))
for part in [*model, model]:
    fully_shard(part, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters())
losses = []
for step in range(8):
    data = torch.randn(64, 128, generator=torch.Generator().manual_seed(10 * step + rank))
    optimizer.zero_grad()
    loss = model(data).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    vtensor.planning.wait_for_plan()
if rank == 0:
    print(hashlib.sha256(repr(losses).encode()).hexdigest())
    print(vtensor.memory_stats()["planned_iterations"] if budget != "none" else 0)
"""


def test_sharded_training_is_planned(tmp_path: Path) -> None:
    """FSDP2 allocates inside ranges that have no schema: they have a name, or no iteration would be like another."""
    assert the_same_in_both(tmp_path, SHARDED, "2MiB") >= 3  # iterations followed a plan
