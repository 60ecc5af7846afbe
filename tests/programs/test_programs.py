"""Whole programs, bit for bit: models, optimizers, and the corners of torch that a memory manager trips over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import vtensor
from vtensor import native
from vtensor.planning.current_planner import wait_for_plan

from ..identity import check_identity

transformers = pytest.importorskip("transformers")


def small_resnet() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    config = transformers.ResNetConfig(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 2], num_labels=10)
    inputs = {"pixel_values": torch.randn(4, 3, 48, 48), "labels": torch.randint(0, 10, (4,))}
    return transformers.ResNetForImageClassification(config), inputs


def small_gpt2() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    config = transformers.GPT2Config(
        n_layer=2, n_embd=64, n_head=4, vocab_size=256, n_positions=64, bos_token_id=0, eos_token_id=0
    )
    tokens = torch.randint(0, 256, (4, 64))
    return transformers.GPT2LMHeadModel(config), {"input_ids": tokens, "labels": tokens}


def small_bert() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    config = transformers.BertConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, vocab_size=256
    )
    tokens = torch.randint(0, 256, (4, 32))
    return transformers.BertForMaskedLM(config), {"input_ids": tokens, "labels": tokens}


MODELS = {"resnet": small_resnet, "gpt2": small_gpt2, "bert": small_bert}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3),
    "adamw_foreach": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=True),
    "adamw_fused": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True),
    "sgd_foreach": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, foreach=True),
    "sgd_fused": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, fused=True),
}


def training(
    model_of: Callable[[], tuple[nn.Module, dict[str, torch.Tensor]]],
    optimizer_of: Callable[[Any], torch.optim.Optimizer],
    steps: int = 6,  # enough for the last to follow a plan
    accumulate: int = 1,
    clip: float | None = None,
    autocast: bool = False,
) -> Any:
    model, inputs = model_of()
    model.train()
    optimizer = optimizer_of(model.parameters())
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(accumulate):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = model(**inputs).loss / accumulate
            loss.backward()
        if clip is not None:
            losses.append(nn.utils.clip_grad_norm_(model.parameters(), clip))
        optimizer.step()
        losses.append(loss.detach())
        wait_for_plan()
    return model.state_dict(), losses, optimizer.state_dict()["state"], [p.grad for p in model.parameters()]


def _profile(model: str, optimizer: str) -> list[pytest.MarkDecorator]:
    """One of each sort with all cores, the others with one; every optimizer with one of the models."""
    if optimizer in ("adamw", "sgd_foreach"):
        return [pytest.mark.alone]
    return [pytest.mark.long] * (model != "gpt2" and optimizer != "sgd")


@pytest.mark.parametrize(
    ("model", "optimizer"),
    [pytest.param(model, name, marks=_profile(model, name)) for model in MODELS for name in OPTIMIZERS],
)
def test_training(model: str, optimizer: str) -> None:
    def program() -> Any:
        if vtensor.is_enabled():
            native.load().observe()
        return training(MODELS[model], OPTIMIZERS[optimizer])

    runs = check_identity(program, (0.6, 0.3))
    assert runs[-1]["evictions"] > 0
    assert runs[-1]["faults"] == 0, "an operation read what the observer had not brought"


@pytest.mark.parametrize("policy", ["lru", "size_staleness"])
@pytest.mark.parametrize("granularity", ["chunk", "tensor"])
def test_policies(policy: str, granularity: str) -> None:
    check_identity(lambda: training(small_gpt2, OPTIMIZERS["adamw"]), policy=policy, granularity=granularity)


def test_spill_to_disk(tmp_path: Any) -> None:
    runs = check_identity(lambda: training(small_resnet, OPTIMIZERS["adamw"]), spill_dir=tmp_path)
    assert runs[0]["moved_out_bytes"] > 0


def test_accumulation_and_clipping() -> None:
    check_identity(lambda: training(small_bert, OPTIMIZERS["adamw_foreach"], accumulate=3, clip=0.5))


def test_autocast() -> None:
    check_identity(lambda: training(small_bert, OPTIMIZERS["adamw"], autocast=True))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing(reentrant: bool) -> None:
    def program() -> Any:
        blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.2)) for _ in range(4))
        hidden = torch.randn(32, 64, requires_grad=True)
        x = hidden
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=reentrant)
        x.sum().backward()
        return hidden.grad, [p.grad for p in blocks.parameters()]

    check_identity(program)


def test_retain_graph_and_double_backward() -> None:
    def program() -> Any:
        x = torch.randn(64, 64, requires_grad=True)
        w = torch.randn(64, 64, requires_grad=True)
        y = torch.tanh(x @ w).pow(3).sum()
        (first,) = torch.autograd.grad(y, x, create_graph=True)
        penalty = first.pow(2).sum()
        penalty.backward(retain_graph=True)
        y.backward(retain_graph=True)
        y.backward()
        return x.grad, w.grad, first

    check_identity(program)


def test_in_place_views_and_channels_last() -> None:
    def program() -> Any:
        x = torch.randn(2, 8, 32, 32).to(memory_format=torch.channels_last)
        conv = nn.Conv2d(8, 8, 3, padding=1).to(memory_format=torch.channels_last)
        y = conv(x).relu_() * 1.0
        y[:, ::2].mul_(2.0)
        y.transpose(0, 1)[3].add_(y[0, 3])
        flat = y.permute(0, 2, 3, 1).reshape(-1)
        flat[::7] = -1
        y.sum().backward()
        out = torch.empty(0)
        torch.add(flat.detach(), 1, out=out)
        out.resize_(4096 * 3).fill_(2)
        base = torch.zeros(64 * 1024)
        for i, piece in enumerate(base.split(1000)):
            piece.add_(i)
        expanded = torch.arange(300.0).expand(100, 300).cumsum(0)
        overlapping = base.as_strided((1000, 30), (10, 1)).sum(1)
        return y, flat, out, base, expanded, overlapping, [p.grad for p in conv.parameters()]

    check_identity(program)


def test_sparse_gradients() -> None:
    def program() -> Any:
        table = nn.Embedding(1000, 64, sparse=True)
        optimizer = torch.optim.SparseAdam(table.parameters())
        for step in range(3):
            optimizer.zero_grad()
            table(torch.arange(step, 1000, 7)).pow(2).sum().backward()
            optimizer.step()
        grad = table.weight.grad.coalesce()
        csr = torch.eye(64).to_sparse_csr()
        return table.weight, grad.indices(), grad.values(), csr @ torch.randn(64, 64)

    check_identity(program)


def test_nested_and_quantized() -> None:
    def program() -> Any:
        nested = torch.nested.nested_tensor([torch.randn(20, 64), torch.randn(35, 64)])
        padded = torch.nested.to_padded_tensor(nn.functional.relu(nested), 0.0)
        quantized = torch.quantize_per_channel(
            torch.randn(64, 64), torch.rand(64) + 0.1, torch.zeros(64), 0, torch.qint8
        )
        return padded, quantized.dequantize(), quantized.int_repr()

    check_identity(program)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent(kind: type[nn.LSTM]) -> None:
    def program() -> Any:
        net = kind(32, 48, num_layers=2, dropout=0.1, bidirectional=True, batch_first=True)
        x = torch.randn(4, 40, 32, requires_grad=True)
        out, _ = net(x)
        out.pow(2).mean().backward()
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([40, 30, 20, 10]), batch_first=True)
        net(packed)[0].data.sum().backward()
        return out, x.grad, [p.grad for p in net.parameters()]

    check_identity(program)


def test_linear_algebra_and_fft() -> None:
    def program() -> Any:
        a = torch.randn(60, 60, dtype=torch.float64, requires_grad=True)
        values, vectors = torch.linalg.eigh(a @ a.T)
        solution = torch.linalg.solve(a, torch.ones(60, 3, dtype=torch.float64))
        spectrum = torch.fft.rfft2(a)
        (values.sum() + solution.sum() + spectrum.abs().sum()).backward()
        return values, vectors.abs(), solution, spectrum, a.grad, torch.sort(a.flatten()), torch.unique(a > 0)

    check_identity(program)


def test_random_numbers_are_the_same() -> None:
    def program() -> Any:
        x = torch.empty(50_000).normal_()
        dropped = nn.functional.dropout(x, 0.3)
        return x, dropped, torch.randperm(10_000), torch.multinomial(x.abs(), 100), torch.get_rng_state()

    check_identity(program)


def test_lazy_copies() -> None:
    def program() -> Any:
        a = torch.randn(20_000)
        b = torch._lazy_clone(a)
        torch.randn(40_000).sum()
        b.add_(1)
        return a, b

    check_identity(program)
