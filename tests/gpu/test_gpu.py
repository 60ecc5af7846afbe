"""What only a GPU can show: `make gpu-check` runs this there, elsewhere all of it is skipped.

Programs, doors and streams on the real device, bit for bit against plain torch.
"""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import vtensor
from vtensor import native
from vtensor.native import chunk_ops
from vtensor.planning.current_planner import wait_for_plan

from ..identity import check_identity
from ..programs.test_programs import MODELS, OPTIMIZERS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

MIB = 1 << 20
SMALL: dict[str, Any] = {"device": "cuda", "chunk": 2 * MIB, "min_size": 1, "host": 8 << 30}


def training(model: str, optimizer: str, steps: int = 7, autocast: bool = False) -> Any:
    module, inputs = MODELS[model]()
    module.cuda().train()
    inputs = {name: value.cuda() for name, value in inputs.items()}
    update = OPTIMIZERS[optimizer](module.parameters())
    losses = []
    for _ in range(steps):
        update.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            loss = module(**inputs).loss
        loss.backward()
        update.step()
        losses.append(loss.detach().cpu())
        wait_for_plan()
    return [value.cpu() for value in module.state_dict().values()], losses


@pytest.fixture(autouse=True)
def deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)


@pytest.mark.parametrize("policy", ["lru", "plan"])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd_foreach", "adamw_fused"])
@pytest.mark.parametrize("model", MODELS)
def test_training(model: str, optimizer: str, policy: str) -> None:
    runs = check_identity(
        lambda: training(model, optimizer), (0.6, 0.4), ample=8 << 30, policy=policy, **SMALL, overdraw=True
    )
    assert runs[-1]["evictions"] > 0


def test_autocast() -> None:
    check_identity(lambda: training("gpt2", "adamw", autocast=True), (0.5,), ample=8 << 30, **SMALL, overdraw=True)


def test_side_streams() -> None:
    def program() -> Any:
        side = torch.cuda.Stream()
        kept = [torch.randn(512, 1024, device="cuda") for _ in range(12)]
        for i in range(60):
            a, b = kept[i % 12], kept[(i * 5 + 3) % 12]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                c = torch.tanh(a + b)
            c.record_stream(torch.cuda.current_stream())
            a.record_stream(side)
            torch.cuda.current_stream().wait_stream(side)
            kept[(i * 7) % 12] = c * 0.5
        return [value.cpu() for value in kept]

    check_identity(program, (0.6, 0.3), ample=1 << 30, policy="lru", **SMALL, overdraw=True)


def test_what_is_torchs_own_waits_for_the_streams_that_it_was_recorded_on() -> None:
    with vtensor.enabled(64 * MIB, policy="lru"):
        side, small = torch.cuda.Stream(), torch.ones(1024, device="cuda")
        torch.cuda.synchronize()
        active = torch.cuda.memory_stats()["active_bytes.all.current"]
        with torch.cuda.stream(side):
            torch.cuda._sleep(500_000_000)
        small.record_stream(side)
        del small
        assert torch.cuda.memory_stats()["active_bytes.all.current"] == active
        side.synchronize()


def test_a_product_is_made_again_by_a_thread_that_made_none() -> None:
    """cuBLAS has a workspace for each thread, which is no result."""
    with vtensor.enabled(256 * MIB, recompute="only", **SMALL):
        a, b = torch.randn(512, 512, device="cuda"), torch.randn(512, 512, device="cuda")
        product = a @ b
        expected = product.cpu()
        native.load().parts.drop_all()
        assert vtensor.residency(product).dropped
    assert torch.equal(product.cpu(), expected)


def test_out_of_memory_is_torchs() -> None:
    with (
        vtensor.enabled(8 * MIB, oversize="raise", policy="lru", **SMALL),
        pytest.raises(torch.OutOfMemoryError, match="vtensor"),
    ):
        torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")


def test_operations_larger_than_the_budget_get_more() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(8 * MIB), torch.randn(8 * MIB)  # each twice the budget
    with vtensor.enabled(16 * MIB, policy="lru", **SMALL):
        c, d = a.cuda(), b.cuda()
        for _ in range(3):
            assert torch.equal((c + d).cpu(), a + b)
        assert torch.equal(c.clone().cpu(), a)  # copied and set by calls, not by kernels
        assert torch.count_nonzero(torch.zeros_like(c)) == 0
        assert torch.count_nonzero(d.zero_().cpu()) == 0
        others = [torch.full((MIB,), float(i), device="cuda") for i in range(8)]
        stats = vtensor.memory_stats()
        assert stats["overdrawn_bytes.peak"] > 0 and stats["borrowed_bytes.peak"] == 0
        assert [float(other[MIB // 2]) for other in others] == list(range(8))
        c.index_add_(0, torch.zeros(MIB, dtype=torch.long, device="cuda"), torch.ones(MIB, device="cuda"))  # atomics
        assert torch.equal(c[1:].cpu(), a[1:])
        assert float(c[0]) == pytest.approx(float(a[0]) + MIB, rel=1e-5)


def test_torchs_own_figures_and_caches_go_on_working() -> None:
    with vtensor.enabled(64 * MIB, device="cuda", chunk=2 * MIB, policy="lru"):
        assert torch.cuda.memory_stats()["num_alloc_retries"] >= 0
        torch.cuda.empty_cache()
        torch.backends.cudnn.benchmark = True
        try:
            layer = nn.Conv2d(3, 8, 3).cuda()
            layer(torch.randn(2, 3, 64, 64, device="cuda")).sum().backward()
        finally:
            torch.backends.cudnn.benchmark = False
        assert torch.cuda.memory_allocated() > 0  # the layer's, which is too small to be managed


def test_a_captured_graph_is_torchs() -> None:
    with vtensor.enabled(64 * MIB, device="cuda", chunk=2 * MIB, policy="lru"):
        graph, given = torch.cuda.CUDAGraph(), torch.ones(MIB, device="cuda")
        given.data_ptr()  # its address is the graph's from now on: it stays
        (given * 2).sum()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            doubled = given * 2
        given.fill_(3)
        graph.replay()
        assert float(doubled[7]) == 6.0


def test_a_graph_is_captured_while_others_leave() -> None:
    """What it uses is brought, and stays; who makes room for that waits for no event of the graph's."""
    with vtensor.enabled(32 * MIB, policy="lru", **SMALL):
        kept = [torch.full((MIB,), float(i), device="cuda") for i in range(16)]
        assert vtensor.residency(kept[0]).absent > 0
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            total = (kept[0] + kept[1]) * kept[2]
        for i in range(3):
            kept[0].fill_(10.0 + i)
            graph.replay()
            assert float(total.sum()) == (11.0 + i) * 2 * MIB
            assert [float(one[5]) for one in kept[3:]] == list(range(3, 16))


def test_what_torchscript_would_fuse_finds_its_arguments() -> None:
    @torch.jit.script
    def score(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.relu(a * b + a) * 0.5

    torch.manual_seed(0)
    given = torch.randn(2, MIB, device="cuda")
    with vtensor.enabled(16 * MIB, policy="lru", **SMALL):
        a, b = given[0].clone(), given[1].clone()
        for _ in range(4):  # it is fused from the third on
            native.load().parts.evict_all()
            held = [torch.full((MIB,), float(i), device="cuda") for i in range(4)]
            assert torch.equal(score(a, b), torch.relu(given[0] * given[1] + given[0]) * 0.5)
            assert len(held) == 4


def test_large_steps_at_a_third_of_their_peak() -> None:
    """Plans with thousands of vTensors, many of them recomputed: an H100 had other bits once."""
    torch.use_deterministic_algorithms(True)  # with warnings alone attention's backward pass does not repeat itself

    def program() -> Any:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0.0, batch_first=True)
        module = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False).cuda()
        update = torch.optim.AdamW(module.parameters(), foreach=False)
        x, losses = torch.randn(8, 512, 1024, device="cuda"), []
        for _ in range(9):
            loss = module(x).square().mean()
            loss.backward()
            update.step()
            update.zero_grad()
            losses.append(loss.item())
            wait_for_plan()
        return [value.cpu() for value in module.parameters()], losses

    runs = check_identity(
        program, (0.35,), ample=12 << 30, device="cuda", chunk=2 * MIB, min_size=MIB, host=24 << 30, overdraw=True
    )
    assert all(run["planned_iterations"] > 2 for run in runs)


def test_an_address_that_was_given_away_stays() -> None:
    with vtensor.enabled(32 * MIB, policy="lru", **SMALL):
        first = torch.full((2 * MIB,), 5.0, device="cuda")
        first.data_ptr()
        others = [torch.full((MIB,), float(i), device="cuda") for i in range(20)]
        native.load().parts.evict_all()
        assert vtensor.residency(first).absent == 0
        assert vtensor.residency(others[0]).absent > 0
        assert float(first.sum()) == 5.0 * 2 * MIB


def test_what_is_older_moves_in() -> None:
    model = torch.nn.Linear(2048, 2048, device="cuda")
    (model(torch.ones(4, 2048, device="cuda")) ** 2).sum().backward()
    before = [tensor.clone() for tensor in (model.weight.detach(), model.weight.grad)]
    for _ in range(2):  # the second time of an ended session
        with vtensor.enabled("256MiB", device="cuda", chunk="2MiB"):
            assert vtensor.adopt(model) == 2 * (16 << 20)
            assert vtensor.residency(model.weight).managed and vtensor.adopt(model) == 0
            assert torch.equal(model.weight, before[0]) and torch.equal(model.weight.grad, before[1])


def test_disable_brings_everything_back() -> None:
    with vtensor.enabled(16 * MIB, policy="lru", **SMALL):
        tensors = [torch.full((MIB,), float(i), device="cuda") for i in range(16)]
        assert vtensor.memory_stats()["absent_bytes.current"] > 0
    for i, tensor in enumerate(tensors):
        assert torch.equal(tensor.cpu(), torch.full((MIB,), float(i)))


def test_an_inference_of_which_nobody_tells_is_planned() -> None:
    """Its weights are twice the budget (kernels/iteration/rounds.h)."""

    def program() -> Any:
        layers = [nn.Linear(2048, 2048).cuda() for _ in range(12)]
        made = []
        with torch.no_grad():
            for _ in range(40):
                x = torch.randn(64, 2048, device="cuda")
                for layer in layers:
                    x = torch.tanh(layer(x))
                made.append(x.sum(0).cpu())
                wait_for_plan()
        return made

    (run,) = check_identity(program, (0.5,), ample=8 << 30, **SMALL, overdraw=True)
    assert run["planned_iterations"] >= 20


def _steps(count: int, step: Callable[[], None]) -> int:
    before = vtensor.memory_stats()["host_waits"]
    for _ in range(count):
        step()
    return int(vtensor.memory_stats()["host_waits"]) - before


def test_no_thread_stands_in_the_steady_state() -> None:
    layers = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(24))).cuda()
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.01)
    given = torch.randn(2048, 1024, device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        layers(given).square().mean().backward()
        optimizer.step()
        wait_for_plan()

    step()
    del layers, optimizer
    with vtensor.enabled(192 * MIB, device="cuda", chunk=2 * MIB):
        layers = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(24))).cuda()
        optimizer = torch.optim.SGD(layers.parameters(), lr=0.01)
        _steps(10, step)
        assert _steps(5, step) == 0
        assert vtensor.memory_stats()["moved_out_bytes"] > 0


def test_chunks_of_torch_and_cupy_never_meet() -> None:
    cupy = pytest.importorskip("cupy")
    with vtensor.enabled(64 * MIB, policy="lru", **SMALL):
        cupy.cuda.set_allocator(vtensor.cupy_allocator())
        try:
            arrays = [cupy.empty(MIB // 8, cupy.uint64) for _ in range(12)]
            for seed, array in enumerate(arrays):
                chunk_ops.fill(array, seed)
            cupy.cuda.runtime.deviceSynchronize()
            tensors = [torch.full((MIB,), float(i), device="cuda") for i in range(32)]
            torch.cuda.synchronize()
            assert [chunk_ops.count_wrong(array, seed) for seed, array in enumerate(arrays)] == [0] * 12
            assert all(float(tensor.sum()) == float(i) * MIB for i, tensor in enumerate(tensors))
            del arrays, array
        finally:
            cupy.cuda.set_allocator(None)


def test_pieces_are_packed_and_come_back() -> None:
    cupy = pytest.importorskip("cupy")
    whole = cupy.random.default_rng(0).integers(0, 256, 100_000, dtype=cupy.uint8)
    before, base = whole.get(), whole.data.ptr
    pieces = [(base + 16, 64), (base + 101, 1), (base + 4096, 40_000), (base + 50_001, 777)]
    packed = cupy.empty(sum(size for _, size in pieces), cupy.uint8)
    chunk_ops.gather(pieces, packed)
    parts = [before[at - base : at - base + size] for at, size in pieces]
    assert packed.get().tobytes() == b"".join(part.tobytes() for part in parts)
    for at, size in pieces:
        whole[at - base : at - base + size] = 0
    chunk_ops.scatter(pieces, packed)
    assert (whole.get() == before).all()
    with pytest.raises(ValueError, match="has room for"):
        chunk_ops.gather(pieces, packed[:-1])


def test_cupy_shares_the_budget() -> None:
    cupy = pytest.importorskip("cupy")
    with vtensor.enabled(64 * MIB, policy="lru", **SMALL):
        tensors = [torch.full((MIB,), float(i), device="cuda") for i in range(16)]
        cupy.cuda.set_allocator(vtensor.cupy_allocator())
        try:
            array = cupy.asarray(range(100_000), dtype=cupy.float64)  # whose sums are exact
            assert vtensor.memory_stats()["budget_bytes"] < 64 * MIB
            assert float(array.sum()) == sum(range(100_000))
            assert float(tensors[5].sum()) == 5.0 * MIB
            del array
        finally:
            cupy.cuda.set_allocator(None)


PLANTED = """
import cupy, torch, vtensor
from vtensor.native import chunk_ops
from vtensor.addresses import address_of

vtensor.enable("64MiB", device="cuda", chunk="2MiB", min_size=1, host="1GiB", policy="lru")

def reads_past_the_dispatcher(given):
    packed = cupy.empty(1024, cupy.uint8)
    chunk_ops.gather([(address_of(given), 1024)], packed)
    print("read", packed[:4].get().tobytes().hex(), flush=True)

victim = torch.full((1 << 20,), 7.0, device="cuda").add_(0)
others = [torch.full((1 << 20,), float(k), device="cuda").add_(0) for k in range(40)]
assert vtensor.residency(victim).absent > 0
reads_past_the_dispatcher(victim)
"""


@pytest.mark.parametrize("strict", [False, True])
def test_a_planted_kernel(strict: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong without a word; in strict mode CUDA's own error, and what it was given named."""
    pytest.importorskip("cupy")
    monkeypatch.setenv("VTENSOR_STRICT", str(int(strict)))
    done = subprocess.run([sys.executable, "-c", PLANTED], capture_output=True, text=True, timeout=240, check=False)
    seven = struct.pack("<f", 7.0).hex()
    if strict:
        assert done.returncode != 0
        assert "read" not in done.stdout
        assert "given, float32 [1048576]" in done.stderr and "reads_past_the_dispatcher" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        assert seven not in done.stdout
