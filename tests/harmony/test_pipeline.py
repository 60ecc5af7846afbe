"""Layers that live in other processes: the bits of one process, and what is said when it cannot be."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import vtensor
from vtensor import ConfigError, HarmonyError
from vtensor.harmony.pipeline.orders import Key
from vtensor.harmony.pipeline.placement import place
from vtensor.harmony.pipeline.promise import Promise
from vtensor.harmony.processes.wire import layout_of, pack, received, unpack, write

from .torchrun import torchrun

# Trains each model with and without a pipeline, and prints what the two have in common.
SCRIPT = """
import contextlib, hashlib, json, os, sys
import torch, vtensor
from torch import distributed
sys.path.insert(0, os.environ["PYTHONPATH"])
from tests.harmony.models import MODELS, OPTIMIZERS, gpt2, odd

cases = json.loads(sys.argv[1])
torch.set_num_threads(1)
distributed.init_process_group("gloo")
rank = distributed.get_rank()

def train(case, pipeline):
    torch.manual_seed(0 if not pipeline else rank)  # a pipeline begins with the first one's weights
    model, batch, loss = {"dropout": lambda: gpt2(0.1), "odd": odd, **MODELS}[case["model"]]()
    optimizer = OPTIMIZERS[case.get("optimizer", "adamw")](model.parameters())
    options = {k: v for k, v in case.items() if k in ("clip_norm", "recompute", "update")}
    def cast(model, batch):
        with torch.autocast("cpu", torch.bfloat16, enabled=case.get("autocast", False)):
            return loss(model, batch).view(case.get("shape", ()))
    options |= {"packs": case.get("packs", 4), "microbatches": 4}
    trainer = vtensor.Harmony(model, optimizer, loss=cast, pipeline=pipeline, **options)
    model.train()
    losses = []
    for step in range(3):
        torch.manual_seed(100 * step)
        losses.append(trainer.step(batch() if rank == 0 or not pipeline else None).tolist())
    trainer.gather()
    digest = hashlib.sha256(torch.get_rng_state().numpy().tobytes())
    for value in model.state_dict().values():
        digest.update(value.detach().numpy().tobytes())
    for state in optimizer.state_dict()["state"].values():
        for value in state.values():
            digest.update(torch.as_tensor(value).numpy().tobytes())
    here = [] if not pipeline else list(filter(trainer._pipeline.here, trainer._packing.layers))
    return [losses, digest.hexdigest(), len(here)]

for case in cases:
    budget = case.get("budget")
    settings = dict(chunk=4096, min_size=1024, host="256MiB")
    with vtensor.enabled(budget, **settings) if budget else contextlib.nullcontext():
        managed = train(case, True)
        evictions = vtensor.memory_stats()["evictions"] if budget else 0
    plain = train(case, False) if rank == 0 else None
    os.write(1, ("case " + json.dumps([rank, case, managed, plain, evictions]) + "\\n").encode())
    distributed.barrier()
distributed.destroy_process_group()
os._exit(0)
"""


def check(folder: Path, processes: int, *cases: dict[str, Any]) -> None:
    """All processes end with the weights, buffers, states and generators of one that did it all."""
    done = torchrun(SCRIPT, folder, processes, json.dumps(cases))
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("case ")]
    assert len(rows) == processes * len(cases)
    expected = {json.dumps(case): plain for rank, case, _, plain, _ in rows if rank == 0}
    for rank, case, (losses, digest, here), _, evictions in rows:
        plain_losses, plain_digest, _ = expected[json.dumps(case)]
        assert losses == plain_losses, (rank, case)
        assert digest == plain_digest, (rank, case)
        assert here > 0, (rank, case)
        assert evictions > 0 or not case.get("budget"), (rank, case)


def test_the_bits_of_one_process(tmp_path: Path) -> None:
    check(
        tmp_path,
        2,
        {"model": "dropout", "budget": "600KiB"},
        {"model": "bert", "autocast": True, "clip_norm": 0.1},
        {"model": "unet", "recompute": True},
        {"model": "odd", "optimizer": "sgd"},
        {"model": "odd", "packs": 2, "shape": [1]},
    )


@pytest.mark.long
def test_other_models(tmp_path: Path) -> None:
    check(tmp_path, 2, *({"model": name, "budget": "1MiB"} for name in ("gpt2", "llama", "resnet", "vit")))
    check(tmp_path, 2, {"model": "experts"})
    check(tmp_path, 2, *({"model": "gpt2", "optimizer": name, "budget": "600KiB"} for name in ("sgd", "adafactor")))


@pytest.mark.long
def test_four_processes(tmp_path: Path) -> None:
    check(tmp_path, 4, {"model": "gpt2", "budget": "600KiB"}, {"model": "bert"}, {"model": "resnet"})


# --- what cannot be -------------------------------------------------------------------------------------------

FAILING = """
import os, sys
import torch, vtensor
from torch import distributed, nn

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
    def forward(self, x, how=None):
        if HOW == "raises" and rank == 1 and torch.is_grad_enabled():
            raise ValueError("from inside of a layer")
        if HOW == "dies" and rank == 1 and torch.is_grad_enabled():
            os._exit(7)
        if HOW == "in place":
            x.mul_(2)
        self.kept = x.sum()
        if HOW == "gradient" and x.sum() > 4:
            return self.inner(x.detach())
        return self.inner(x)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(4))
    def forward(self, x):
        for layer in self.layers:
            x = layer(x * 1, (lambda: 0) if HOW == "lambda" else None)
        return x

HOW = sys.argv[1]
distributed.init_process_group("gloo")
rank = distributed.get_rank()
model = Model()
handed_out = []
if HOW == "hook":
    for layer in model.layers:
        layer.inner.register_forward_hook(lambda module, args, output: handed_out.append(output.sum()))
trainer = vtensor.Harmony(
    model, torch.optim.SGD(model.parameters(), lr=0.1), microbatches=2, pipeline=True,
    loss=lambda m, x: {
        "loss": lambda: 1 / 0 if torch.is_grad_enabled() else m(x).sum(),
        "outside": lambda: m(x).sum() + sum(p.sum() for p in m.parameters()),
        "hook": lambda: (handed_out.clear(), m(x).sum() + sum(handed_out))[1],
        "kept": lambda: m(x).sum() + sum(layer.kept for layer in m.layers),
    }.get(HOW, lambda: m(x).sum())(),
)
try:
    trainer.step(torch.ones(2, 4) * torch.tensor([[1.0], [2.0]]))
finally:
    trainer.step(torch.ones(2, 4))
"""


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("in place", "writes into its arguments"),
        ("outside", "is used outside of it, and lives in another process"),
        pytest.param("hook", "the loss needs more of layers than what they return", marks=pytest.mark.long),
        ("kept", "the loss needs more of layers than what they return"),
        pytest.param("raises", "from inside of a layer", marks=pytest.mark.long),
        pytest.param("dies", "process 1 is gone", marks=pytest.mark.long),
        pytest.param("lambda", "an argument of the layer layers.1 cannot go", marks=pytest.mark.long),
        pytest.param("loss", "the first process failed: ZeroDivisionError", marks=pytest.mark.long),
    ],
)
def test_what_goes_wrong_is_said_and_ends_all(tmp_path: Path, how: str, said: str) -> None:
    begun = time.monotonic()
    done = torchrun(FAILING, tmp_path, 2, how)
    assert done.returncode != 0
    assert said in done.stderr, done.stderr[-3000:]
    assert "an earlier step of this pipeline failed" in done.stderr or how == "dies"
    assert time.monotonic() - begun < 60


def test_arguments() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.defaults["max_grad_norm"] = 1.0
    with pytest.raises(ConfigError, match="pipeline= is not possible: SGD clips by the norm of all gradients"):
        vtensor.Harmony(model, optimizer, loss=lambda m, x: m(x).sum(), microbatches=2, pipeline=True)
    del optimizer.defaults["max_grad_norm"]
    with pytest.raises(ConfigError, match="init_process_group"):
        vtensor.Harmony(model, optimizer, loss=lambda m, x: m(x).sum(), microbatches=2, pipeline=True)
    with pytest.raises(ConfigError, match="choose one"):
        vtensor.Harmony(
            model, optimizer, loss=lambda m, x: m(x).sum(), microbatches=2, pipeline=True, data_parallel=True
        )


GROUPS = """
import os, sys, torch, vtensor
from torch import distributed, nn
distributed.init_process_group("gloo")
rank = distributed.get_rank()
groups = [distributed.new_group([0, 1]), distributed.new_group([2, 3])]

def train(pipeline):
    torch.manual_seed(rank // 2)
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"loss": lambda m, x: m(x).square().mean(), "microbatches": 2, "clip_norm": 0.5}
    trainer = vtensor.Harmony(model, optimizer, pipeline=pipeline, **options)
    losses = [trainer.step(torch.ones(4, 8) * step).item() for step in range(3)]
    trainer.gather()
    return losses, [p.tolist() for p in model.parameters()]

assert train(groups[rank // 2]) == train(False)
distributed.barrier()
os._exit(0)
"""


@pytest.mark.long
def test_a_pipeline_in_each_of_two_groups(tmp_path: Path) -> None:
    done = torchrun(GROUPS, tmp_path, 4)
    assert done.returncode == 0, done.stderr[-3000:]


# --- rooms ----------------------------------------------------------------------------------------------------


def test_shared_layers_stay_where_the_program_is() -> None:
    layers = [nn.Linear(2, 2) for _ in range(6)]
    layers[3].weight = layers[0].weight
    model = nn.ModuleList(layers)
    assert list(place(model, [[layer] for layer in layers], 2).values()) == [0, 1, 0, 0, 0, 1]


@given(
    st.lists(st.integers(0, 4), min_size=0, max_size=4),
    st.permutations(range(4)),
    st.lists(st.booleans(), min_size=4, max_size=4),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool]),
)
def test_tensors_arrive_as_they_are_laid_out(
    shape: list[int], order: list[int], expanded: list[bool], dtype: torch.dtype
) -> None:
    order = [k for k in order if k < len(shape)]
    shape = [1 if wide else size for size, wide in zip(shape, expanded, strict=False)]
    tensor = torch.randint(0, 2, [shape[k] for k in order]).to(dtype)
    tensor = tensor.permute([order.index(k) for k in range(len(shape))])
    tensor = tensor.expand([3 if wide else size for size, wide in zip(shape, expanded, strict=False)])
    layout = layout_of(tensor)
    buffer = torch.zeros(4096, dtype=torch.uint8)
    write(tensor, buffer)
    got = received(layout, buffer)
    assert torch.equal(got, tensor)
    assert got.numel() == 0 or got.stride() == tensor.stride()


def test_values_without_their_tensors() -> None:
    given, other = torch.full((3,), 2.0), torch.zeros(1)
    data, kept = pack({"a": [torch.ones(2), None, given], "b": (3, other, other)}, "this", given=[given])
    assert len(kept) == 2
    value = unpack(data, kept, given=[given])
    assert value["a"][0] is kept[0]
    assert value["a"][2] is given
    assert value["b"][0] == 3
    assert value["b"][1] is kept[1]
    assert value["b"][2] is kept[1]
    with pytest.raises(HarmonyError, match="this cannot go to another process"):
        pack(lambda: 0, "this")


def test_a_promise_is_kept_when_somebody_looks() -> None:
    fetched: list[Key] = []
    held = torch.arange(4.0)

    class Letter:
        def wait(self) -> torch.Tensor:
            return held

    def ask(promise: Promise) -> Any:
        fetched.append(promise.key)
        return Letter()

    promise = Promise(layout_of(held), Key(1, 0), 1, ask=ask)
    assert promise.shape == (4,)
    assert promise.dtype == torch.float32
    assert not fetched
    promise.requires_grad_()
    (promise * 2).sum().backward()  # type: ignore[no-untyped-call]
    assert fetched == [Key(1, 0)]
    assert promise.grad is not None
    assert promise.grad.tolist() == [2.0] * 4
    assert not promise.changed
    with torch.no_grad():
        promise.add_(1)
    assert promise.changed
    assert held.tolist() == [1, 2, 3, 4]
