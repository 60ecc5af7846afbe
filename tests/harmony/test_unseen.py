"""Buffers outside of layers, written where no hook sees it, and kept by graphs whose program says what they keep."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.nn.functional import batch_norm

import vtensor
from vtensor import HarmonyError

from .test_statistics import check, loss


class Scale(nn.Module):
    """By what it has seen so far; the version stays as it was."""

    scale: torch.Tensor

    def __init__(self, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(()))
        self.weight, self.inner = nn.Parameter(torch.ones(1)), inner

    def update(self, x: torch.Tensor) -> None:
        self.scale.data.mul_(0.5).add_(0.5 * x.detach().abs().mean())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.update(x)
        x = torch.tanh(x * self.weight * self.scale)
        return x if self.inner is None else self.inner(x)


class Net(nn.Module):
    def __init__(self, layer: Callable[[], nn.Module] = lambda: nn.Linear(8, 8), first: nn.Module | None = None):
        super().__init__()
        self.first = first or nn.Identity()
        self.layers = nn.ModuleList(layer() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x


class Root(Net):
    """Writes before its layers run, and reads after it."""

    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.scale.mul_(0.5).add_(0.5 * x.abs().mean())
        return super().forward(x) / self.scale.clone()


class ByMethod(Net):
    """What has the buffer is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = Scale()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.norm.update(x)
        return super().forward(x) * self.norm.scale.clone()


class Hooked(Scale):
    """The program itself says what is kept."""

    def __init__(self, hooks: Callable[[], contextlib.AbstractContextManager[Any]]) -> None:
        super().__init__()
        self.hooks = hooks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with self.hooks():
            return super().forward(x)


class Online(nn.BatchNorm1d):
    """Torch's own, but for what it does."""

    def __init__(self) -> None:
        super().__init__(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch_norm(x.detach(), self.running_mean, self.running_var, training=True, momentum=0.5)
        return batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, training=False)


def passing() -> saved_tensors_hooks:
    return saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)


class Masked(Net):
    """What is made once is kept."""

    mask: torch.Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mask = torch.arange(8) / 8 if self.mask is None else self.mask
        return super().forward(x) * self.mask


def test_what_is_made_once_keeps_nobody_from_taking_turns(caplog: pytest.LogCaptureFixture) -> None:
    check(Masked)
    assert "not interleaved" not in caplog.text


class Growing(Net):
    """A table as long as was ever needed, made anew where one is that is longer."""

    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(2) / 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(self.table) < len(x):
            self.table = torch.arange(len(x)) / 8
        return super().forward(x + self.table[: len(x), None])


def test_a_table_that_grows_keeps_nobody_from_taking_turns(caplog: pytest.LogCaptureFixture) -> None:
    model = Growing()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = vtensor.Harmony(model, optimizer, loss=loss, microbatches=4, packs=4)
    for rows in (16, 8, 24, 32):
        trainer.step(torch.ones(rows, 8))
    assert "not interleaved" not in caplog.text and len(trainer.packs) == 4 and len(model.table) == 8


def test_two_trainers_at_once_keep_their_own_copies() -> None:
    def train(seed: int) -> list[torch.Tensor]:
        model = models[seed]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer = vtensor.Harmony(model, optimizer, loss=loss, microbatches=4, packs=4)
        for step in range(8):
            trainer.step(torch.randn(16, 8, generator=torch.Generator().manual_seed(step)))
        return [value.clone() for value in model.state_dict().values()]

    def made(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return Net(lambda: Hooked(passing) if seed else Scale())

    models = [made(0), made(1)]
    alone = [train(0), train(1)]
    models = [made(0), made(1)]
    with ThreadPoolExecutor() as pool:
        together = list(pool.map(train, (0, 1)))
    assert all(all(map(torch.equal, one, other)) for one, other in zip(alone, together, strict=True))


@pytest.mark.parametrize("whole", [False, True])
def test_modules_that_are_compiled(whole: bool) -> None:
    """Dynamo looks into hooks, and cannot follow what these do."""

    def make() -> nn.Module:
        model = Net(lambda: nn.BatchNorm1d(8), first=nn.BatchNorm1d(8))
        for module in [model] if whole else model.layers:
            module.compile(backend="eager")
        return model

    check(make)
    torch._dynamo.reset()


@pytest.mark.parametrize("make", [Root, ByMethod])
def test_layers_take_no_turns_while_something_is_written_unseen(
    make: Callable[[], nn.Module], caplog: pytest.LogCaptureFixture
) -> None:
    check(make)
    assert [each.message for each in caplog.records if "writes a buffer (scale)" in each.message]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Net(first=Scale(Scale())),
        lambda: Net(lambda: Hooked(passing)),
        lambda: Net(lambda: Hooked(save_on_cpu)),
        lambda: Net(Online),
    ],
    ids=["one within another", "hooks", "on the host", "a norm of its own"],
)
def test_graphs_keep_copies_whatever_the_program_does_with_them(
    make: Callable[[], nn.Module], caplog: pytest.LogCaptureFixture
) -> None:
    check(make)
    assert "not interleaved" not in caplog.text


def test_hooks_around_the_whole_loss_are_given_copies() -> None:
    def train(harmony: bool) -> list[torch.Tensor]:
        def hooked(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
            with save_on_cpu():
                return loss(model, x)

        torch.manual_seed(0)
        model = Net(Scale)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer = vtensor.Harmony(model, optimizer, loss=hooked, microbatches=4, packs=4)
        for step in range(3):
            batch = torch.randn(8, 8, generator=torch.Generator().manual_seed(step)) * torch.arange(1, 9)[:, None]
            if harmony:
                trainer.step(batch)
                continue
            for part in batch.chunk(4):
                (hooked(model, part) / 4).backward()
            optimizer.step()
            optimizer.zero_grad()
        return [value.clone() for value in model.state_dict().values()]

    assert all(map(torch.equal, train(True), train(False)))


class Attribute(nn.Linear):
    """What is like a buffer, and none."""

    def __init__(self) -> None:
        super().__init__(8, 8)
        self.mean = torch.zeros(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.mul_(0.5).add_(0.5 * x.detach().mean(0))
        return super().forward(x - self.mean.clone())


def test_a_second_run_finds_attributes_that_are_written_in_place_as_the_first_did() -> None:
    check(lambda: nn.Sequential(*(Attribute() for _ in range(4))), recompute=True)


class Momentum(nn.Module):
    """MoCo: the other encoder's weights follow, past autograd, before each forward."""

    def __init__(self) -> None:
        super().__init__()
        self.online, self.slow = Net(), Net().requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for slow, online in zip(self.slow.parameters(), self.online.parameters(), strict=True):
            slow.data.mul_(0.9).add_(online.data, alpha=0.1)
        return self.online(x) - self.slow(x)


class Stepping(Net):
    """A weight is updated in backward, as soon as its gradient is there."""

    def __init__(self) -> None:
        super().__init__()

        def update(weight: torch.Tensor) -> None:
            weight.data.sub_(weight.grad, alpha=0.1)

        self.layers[1].weight.register_post_accumulate_grad_hook(update)


class Rolling(Net):
    """The same values, elsewhere."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.layers[2].weight
        weight.data.copy_(weight.data.roll(1, 0))
        return super().forward(x)


@pytest.mark.parametrize("make", [Momentum, Stepping, Rolling])
def test_layers_take_no_turns_while_weights_are_written(
    make: Callable[[], nn.Module], caplog: pytest.LogCaptureFixture
) -> None:
    check(make)
    assert "weights are written in forward or backward" in caplog.text


class Initialised(nn.Module):
    """By the first data it sees, as ActNorm is."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.seen = nn.Parameter(torch.ones(8)), False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.seen:
            self.scale.data.copy_(1 / (x.std(0) + 1))
            self.seen = True
        return x * self.scale


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 8, max_norm=0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.table((x[:, 0] * 10).long().remainder(10))


@pytest.mark.parametrize("make", [lambda: Net(Initialised), lambda: Net(first=Tokens())], ids=["once", "max_norm"])
def test_weights_written_once_or_to_keep_their_norm(
    make: Callable[[], nn.Module], caplog: pytest.LogCaptureFixture
) -> None:
    check(make)
    assert "not interleaved" not in caplog.text
    model = make()
    trainer = vtensor.Harmony(
        model, torch.optim.SGD(model.parameters(), lr=0.1), loss=loss, microbatches=4, packs=2, recompute=True
    )
    for _ in range(2):
        trainer.step(torch.randn(16, 8))
    assert [len(pack) for pack in trainer.packs] == [2, 2]


def test_weights_that_only_move_keep_nobody_from_taking_turns(caplog: pytest.LogCaptureFixture) -> None:
    class Flattened(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for weight in self.parameters():
                weight.data = weight.detach().clone()
            return super().forward(x)

    check(Flattened)
    assert "not interleaved" not in caplog.text


def test_what_is_written_unseen_only_later_is_an_error() -> None:
    class Later(Root):
        writes = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) if self.writes else Net.forward(self, x) / self.scale.clone()

    model = Later()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = vtensor.Harmony(model, optimizer, loss=loss, microbatches=4, packs=4)
    trainer.step(torch.ones(8, 8))
    model.writes = True
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(HarmonyError, match=r"a Later has a buffer \(scale\) that was written while its layers took"):
        trainer.step(torch.ones(8, 8))
    assert all(map(torch.equal, model.parameters(), before))
    optimizer.zero_grad()
    trainer.step(torch.ones(8, 8))  # by no turns
