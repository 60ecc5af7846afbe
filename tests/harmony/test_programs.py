"""Programs that do what people's programs do, beside the ordinary loop."""

from __future__ import annotations

import contextvars
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import vtensor
from vtensor import HarmonyError

from ..identity import leaves, same
from .models import accumulate, threads_left

Loss = Callable[[nn.Module, torch.Tensor], torch.Tensor]
NORMED = nn.utils.weight_norm  # the old style: a hook sets the weight before each forward


class Stack(nn.Module):
    """Layers of which a microbatch may leave some out."""

    def __init__(self, layer: Callable[[], nn.Module], count: int = 6, leaves_out: int = 9) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer() for _ in range(count))
        self.leaves_out = leaves_out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for k, layer in enumerate(self.layers):
            if k % 3 != self.leaves_out or x[0, 0] > 0:
                x = torch.tanh(layer(x))
        return x


def square(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).square().mean()


def compare(
    model: nn.Module,
    loss: Loss = square,
    steps: int = 3,
    frozen: bool = False,
    twin: nn.Module | None = None,
    batch: Callable[[], torch.Tensor] = lambda: torch.randn(16, 8),
    **options: Any,
) -> Any:
    """Both orders give the same; returns the trainer."""
    torch.manual_seed(1)
    twin = copy.deepcopy(model) if twin is None else twin
    if frozen:
        for each in (model, twin):
            first = next(each.parameters())
            first.grad = torch.ones_like(first)
            first.requires_grad_(False)
    one, two = (torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (model, twin))
    trainer = vtensor.Harmony(model, one, loss=loss, microbatches=4, **options)
    for _ in range(steps):
        samples = batch()
        got = trainer.step(samples.clone())
        expected = accumulate(twin, two, loss, [part.clone() for part in samples.split(4)])
        assert torch.equal(got, expected)
        assert same(list(leaves(model.state_dict())), list(leaves(twin.state_dict())))
    assert not threads_left()
    return trainer


@pytest.mark.parametrize("leaves_out", [0, 1, 2])
@pytest.mark.parametrize("packs", [2, 3])
def test_layers_that_are_left_out(leaves_out: int, packs: int) -> None:
    """Also the first or the last of a pack: running statistics are updated in the order of the microbatches."""
    trainer = compare(Stack(lambda: nn.BatchNorm1d(8), leaves_out=leaves_out), packs=packs)
    assert len(trainer.packs) == packs


class Around(nn.Module):
    """Something before layers and after them, and microbatches that leave a layer out: a whole pack."""

    def __init__(self, leaves_out: int) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(8, 8), nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 8))
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.leaves_out = leaves_out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.before(x))
        for k, layer in enumerate(self.layers):
            if k != self.leaves_out or x[0, 0] > 0:
                y = torch.tanh(layer(y))
        result: torch.Tensor = self.after(y)
        return result


@pytest.mark.parametrize("leaves_out", range(4))
def test_what_is_before_and_after_packs_that_are_left_out(leaves_out: int) -> None:
    trainer = compare(Around(leaves_out), steps=8, layers=[f"layers.{k}" for k in range(4)])
    assert len(trainer.packs) == 4


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh())


def both_halves(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return (model(x) - model(x * 3 + 1)).square().mean()


@pytest.mark.parametrize("layer", [normed, lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))])
def test_layers_that_change_buffers_and_run_twice(layer: Callable[[], nn.Module]) -> None:
    """As the discriminator of a GAN: none may run for another microbatch in between. Others go on taking turns."""

    class Model(Stack):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for k, each in enumerate(self.layers):
                x = torch.tanh(each(x))
                if k in (1, 3):
                    x = self.shared(x)
            return x

    model = Model(lambda: nn.Linear(8, 8))
    model.shared = layer()
    names = [f"layers.{k}" for k in range(6)]
    trainer = compare(model, layers=names)
    assert len(trainer.packs) == 4  # two lie between the runs of what they share
    compare(Stack(layer), both_halves)


def test_a_layer_that_turns_out_to_run_twice_and_changes_buffers() -> None:
    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return square(model, model(x)) if x[0, 0] > 0 else square(model, x)

    model = Stack(normed)
    trainer = vtensor.Harmony(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=loss, microbatches=3)
    with pytest.raises(HarmonyError, match=r"layers\.0\.1 ran in microbatch 1 when a later one"):
        trainer.step(torch.tensor([[-1.0], [-1.0], [1.0], [1.0], [-1.0], [-1.0]]) * torch.ones(6, 8))
    assert not threads_left()


def reweighed(norm: Callable[[nn.Module], nn.Module]) -> tuple[nn.Module, nn.Module]:
    one, two = (Stack(lambda: norm(nn.Linear(8, 8))) for _ in range(2))
    two.load_state_dict(one.state_dict())
    return one, two


@pytest.mark.parametrize("recompute", [False, True])
def test_weights_that_hooks_set(recompute: bool) -> None:
    with pytest.warns(FutureWarning, match="weight_norm"):
        model, twin = reweighed(NORMED)
    compare(model, packs=3, twin=twin, recompute=recompute)


@pytest.mark.parametrize("recompute", [False, True])
def test_weights_that_hooks_set_anew_for_each_microbatch(recompute: bool) -> None:
    model, twin = reweighed(nn.utils.spectral_norm)
    compare(model, packs=3, twin=twin, recompute=recompute)


def test_a_frozen_parameter_with_a_gradient_from_before() -> None:
    compare(Stack(lambda: nn.Linear(8, 8)), packs=3, frozen=True)


@pytest.mark.parametrize("recompute", [False, True])
def test_a_gradient_penalty(recompute: bool) -> None:
    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        y = model(x).sum()
        (slope,) = torch.autograd.grad(y, x, create_graph=True)
        return y + slope.square().mean()

    compare(Stack(lambda: nn.Linear(8, 8)), loss, recompute=recompute)


def test_checkpoints_of_the_user() -> None:
    class Checkpointed(Stack):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = torch.tanh(checkpoint(layer, x, use_reentrant=False))
            return x

    assert len(compare(Checkpointed(lambda: nn.Linear(8, 8))).packs) == 6


def test_a_part_of_the_batch_is_overwritten() -> None:
    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        x[x < 0] = 0
        return square(model, x)

    compare(Stack(lambda: nn.Linear(8, 8)), loss)


def test_a_forward_that_somebody_set_stays() -> None:
    model = Stack(lambda: nn.Linear(8, 8))
    mine = model.layers[2].forward
    model.layers[2].forward = lambda x: 2 * mine(x)  # type: ignore[method-assign]
    set_by_me = model.layers[2].forward
    trainer = vtensor.Harmony(
        model, torch.optim.SGD(model.parameters(), lr=0.1), loss=square, microbatches=2, recompute=True
    )
    trainer.step(torch.randn(4, 8))
    assert model.layers[2].forward is set_by_me


@pytest.mark.parametrize("count", [1, 3])
def test_a_layer_keeps_nothing_in_any_microbatch_if_it_runs_again(count: int) -> None:
    """The first one of all too, which shows the order: without a budget it would need real memory.

    Of what counts for itself there is one run, as in the ordinary loop.
    """

    class Counted(nn.Linear):
        counted = 0

        def __init__(self) -> None:
            super().__init__(8, 8)
            self.calls: list[None] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.counted += 1
            self.calls.append(None)
            return super().forward(x)

    model = Stack(Counted)
    trainer = vtensor.Harmony(
        model, torch.optim.SGD(model.parameters(), lr=0.1), loss=square, microbatches=count, recompute=True
    )
    for step in range(1, 3):
        trainer.step(torch.randn(6, 8))
        runs = [len(layer.calls) for layer in model.layers]
        assert runs == [step * 2 * count] * (len(runs) - 1) + [step * count]
        assert {layer.counted for layer in model.layers} == {step * count}


def test_what_is_kept_on_the_model_is_noticed() -> None:
    """As some keep auxiliary losses: by turns each finds that of another."""

    class Keeps(Stack):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x).tanh()
                self.aux = x.square().mean()
            return x

    def loss(model: Any, x: torch.Tensor) -> torch.Tensor:
        model(x)
        value: torch.Tensor = model.aux
        return value

    class Mixed(Keeps):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.aux = torch.zeros(())
            for layer in self.layers:
                x = layer(x).tanh()
                self.aux = self.aux + x.square().mean()
            return self.aux

    model = Mixed(lambda: nn.Linear(8, 8))
    trainer = vtensor.Harmony(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=square, microbatches=3)
    with pytest.raises((HarmonyError, RuntimeError), match=r"went backward through what|backward through the graph"):
        trainer.step(torch.randn(6, 8))
    assert not threads_left()
    compare(Keeps(lambda: nn.Linear(8, 8)), loss)  # here each reads what it wrote last


def test_a_layer_is_called_while_a_failed_step_ends() -> None:
    def loss(model: Any, x: torch.Tensor) -> torch.Tensor:
        try:
            y = model(x)
        finally:
            model.layers[2](x)
        if x[0, 0] > 1:
            raise ZeroDivisionError
        return y.sum()

    model = Stack(lambda: nn.Linear(8, 8))
    trainer = vtensor.Harmony(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=loss, microbatches=3)
    batch = torch.zeros(3, 8)
    batch[0, 0] = 2
    with pytest.raises(ZeroDivisionError):
        trainer.step(batch)
    assert not threads_left()


def test_context_variables_are_those_of_the_caller() -> None:
    mine = contextvars.ContextVar("mine", default=0)

    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return square(model, x) * mine.get()

    mine.set(3)
    compare(Stack(lambda: nn.Linear(8, 8)), loss)


def test_steps_count_as_iterations_after_an_ordinary_one() -> None:
    with vtensor.enabled(1 << 28, device="cpu"):
        vtensor.record()
        model = Stack(lambda: nn.Linear(8, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        accumulate(model, optimizer, square, [torch.randn(4, 8)])
        before = vtensor.memory_stats()["iterations"]
        trainer = vtensor.Harmony(model, optimizer, loss=square, microbatches=4)
        for _ in range(4):
            trainer.step(torch.randn(16, 8))
        assert vtensor.memory_stats()["iterations"] - before == 4


def test_states_that_come_later_stand_where_the_ordinary_loop_puts_them() -> None:
    """A saved optimizer has them in that order."""
    model = Stack(lambda: nn.Linear(8, 8))
    twin = copy.deepcopy(model)
    orders = list[list[int]]()
    for each in (model, twin):
        each.layers[2].requires_grad_(False)
        optimizer = torch.optim.AdamW(each.parameters(), lr=0.01)
        trainer = vtensor.Harmony(each, optimizer, loss=square, microbatches=2) if each is model else None
        for step in range(2):
            torch.manual_seed(step)
            batch = torch.randn(8, 8)
            if trainer is None:
                accumulate(each, optimizer, square, list(batch.split(4)))
            else:
                trainer.step(batch)
            each.layers[2].requires_grad_(True)
        orders.append(list(optimizer.state_dict()["state"]))
    assert orders[0] == orders[1] and len(orders[0]) == 12


class Counting(nn.Module):
    """Counts by whole numbers what it saw, and keeps a mask that it makes when it is first needed."""

    mask: torch.Tensor
    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("seen", torch.zeros(8, dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "mask"):
            self.register_buffer("mask", torch.ones(8, 8, dtype=torch.bool))
        self.seen[: len(x)] += 1
        return self.linear(x) * self.mask[0]


@pytest.mark.parametrize("recompute", [False, True])
def test_buffers_of_whole_numbers_and_of_later(recompute: bool) -> None:
    compare(nn.Sequential(*(Counting() for _ in range(4))), packs=2, recompute=recompute)


class Shared(nn.Module):
    """Between all layers one module lies, which makes what it keeps when it is first needed."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.between = Lazy()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(self.between(x)))
        return x


class Lazy(nn.Module):
    cosine: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "cosine"):
            self.register_buffer("cosine", torch.arange(8.0).cos())
        return x * self.cosine


def test_a_cache_that_comes_to_be_in_a_forward() -> None:
    compare(Shared(), packs=2)


def test_a_default_device() -> None:
    """What Harmony makes for itself is where it belongs."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    trainer = vtensor.Harmony(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=square, microbatches=2)
    batch = torch.randn(4, 8)
    with torch.device("meta"):
        assert trainer.step(batch).device.type == "cpu"


@pytest.mark.parametrize("thrown_away", [None, 5])
def test_packs_stay_together_though_a_result_is_thrown_away(thrown_away: int | None) -> None:
    """All microbatches add to a pack's gradients before any comes to the next: else each reads all weights again."""

    class Throwing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for k, layer in enumerate(self.layers):
                y = torch.tanh(layer(x))
                x = x if k == thrown_away else y
            return x

    model, order = Throwing(), list[int]()
    for k, layer in enumerate(model.layers):
        layer.weight.register_hook(lambda _, k=k: order.append(k))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = vtensor.Harmony(model, optimizer, loss=square, microbatches=3, packs=8)
    for _ in range(2):  # in the first step one goes ahead
        order.clear()
        trainer.step(torch.randn(12, 8))
    assert order == [k for k in reversed(range(8)) if k != thrown_away for _ in range(3)]
