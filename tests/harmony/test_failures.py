"""What goes wrong in a microbatch, what an optimizer wants, what is no argument: clear words, nothing left behind."""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
import traceback
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import vtensor
from vtensor import ConfigError, HarmonyError
from vtensor.harmony.updates import when_to_update

from ..identity import leaves, same
from ..session.interrupts import interrupted, points_of, thinned
from .models import accumulate, threads_left
from .test_unseen import Scale


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return x


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).square().mean()


@pytest.fixture
def model() -> Iterator[Small]:
    torch.manual_seed(0)
    made = Small()
    yield made
    assert not threads_left()
    for module in made.modules():
        assert not module._forward_hooks and not module._forward_pre_hooks and "forward" not in vars(module)
    assert not any(p._post_accumulate_grad_hooks for p in made.parameters())


def trainer_of(model: Small, **options: Any) -> vtensor.Harmony:
    optimizer = options.pop("optimizer", None) or torch.optim.Adam(model.parameters(), lr=0.1)
    return vtensor.Harmony(model, optimizer, loss=options.pop("loss", loss_of), microbatches=3, **options)


class Explodes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        raise ZeroDivisionError("in the middle of backward")


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("recompute", [False, True])
def test_one_microbatch_fails(model: Small, backward: bool, recompute: bool) -> None:
    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = model.layers[1](model.layers[0](x))  # type: ignore[index]
        if x[0, 0] == 1:
            if not backward:
                raise ZeroDivisionError("in the middle of forward")
            y = Explodes.apply(y)  # type: ignore[no-untyped-call]
        return model.layers[3](model.layers[2](y)).square().mean()  # type: ignore[index]

    trainer = trainer_of(model, loss=loss, recompute=recompute)
    batch = torch.zeros(3, 8)
    batch[1, 0] = 1
    with pytest.raises(ZeroDivisionError, match="in the middle of") as caught:
        trainer.step(batch)
    lines = "".join(traceback.format_tb(caught.value.__traceback__))
    assert ("in backward" if backward else "in loss") in lines
    trainer.optimizer.zero_grad()
    trainer.step(torch.randn(3, 8))


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Also where whoever started the tests ignores Ctrl-C, as shells do for what runs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c(model: Small, interruptible: None) -> None:
    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        if x[0, 0] == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return loss_of(model, x)

    batch = torch.zeros(3, 8)
    batch[1, 0] = 1
    trainer = trainer_of(model, loss=loss)
    with pytest.raises(KeyboardInterrupt):
        trainer.step(batch)
    trainer.optimizer.zero_grad()
    trainer.step(torch.randn(3, 8))


def _interrupts(model: Small, recompute: bool, part: slice) -> None:
    """One interrupt in a step, wherever the package works in the thread that is interrupted; then another step."""

    def step() -> None:
        trainer.step(torch.ones(3, 8))

    model.layers[1] = Scale()  # of which graphs keep copies
    trainer, pushes = trainer_of(model, recompute=recompute, packs=2), torch._C._autograd
    own = pushes._push_saved_tensors_default_hooks
    points = [p for p in thinned(points_of(step)) if "harmony" in p.code.co_filename and p.file != "weave.py"]
    assert len(points) > 1000
    for number, point in enumerate(points[part]):
        if number % 2:  # one whose first microbatch shows the order of layers
            trainer = trainer_of(model, recompute=recompute, packs=2)
        interrupted(step, point)  # it may not come by there
        assert not threads_left(), point
        for module in model.modules():
            assert not module._forward_hooks and not module._forward_pre_hooks, point
            assert "forward" not in vars(module), point
        assert not any(p._post_accumulate_grad_hooks or p._backward_hooks for p in model.parameters()), point
        assert pushes._push_saved_tensors_default_hooks is own, point
        torch.set_grad_enabled(True)  # torch's own contexts may be interrupted, too
        trainer.optimizer.zero_grad()
        step()


# An interrupt in a generator that Python closes is said, and goes nowhere.
nowhere = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@nowhere
@pytest.mark.parametrize("recompute", [False, True])
def test_ctrl_c_wherever_it_comes(model: Small, recompute: bool) -> None:
    _interrupts(model, recompute, slice(int(recompute), None, 12))


@nowhere
@pytest.mark.long
@pytest.mark.parametrize("recompute", [False, True])
def test_ctrl_c_everywhere(model: Small, recompute: bool) -> None:
    _interrupts(model, recompute, slice(None))


def test_a_layer_that_does_something_else_when_it_runs_again() -> None:
    class Caching(nn.Linear):
        """As those do that fill a cache of keys and values."""

        def __init__(self) -> None:
            super().__init__(8, 8)
            self.seen: list[torch.Tensor] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen.append(x)
            return super().forward(torch.cat(self.seen))[-len(x) :]

    model = nn.Sequential(*(Caching() for _ in range(3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = vtensor.Harmony(model, optimizer, loss=loss_of, microbatches=2, packs=3, recompute=True)
    with pytest.raises(HarmonyError, match=r"did something else when it ran again .* use_cache=False"):
        trainer.step(torch.randn(4, 8))


@pytest.mark.parametrize("update", ["packs", "together"])
def test_a_loss_that_goes_backward_twice(model: Small, update: str) -> None:
    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        model(x).sum().backward()
        return loss_of(model, x)

    with pytest.raises(HarmonyError, match=r"layers\.\d\.\w+ got two gradients .* return the sum"):
        trainer_of(model, loss=loss, update=update).step(torch.randn(3, 8))


@pytest.mark.parametrize("value", [None, 1.0, torch.zeros(2)])
def test_a_loss_that_is_no_scalar(model: Small, value: Any) -> None:
    with pytest.raises(ConfigError, match="must return a scalar tensor, and returned"):
        trainer_of(model, loss=lambda *_: value).step(torch.randn(3, 8))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"packs": 0}, "packs=0"),
        ({"update": "never"}, "update='never' is unknown; choose one of auto, packs, together"),
        ({"update": "packs", "clip_norm": 1.0}, "clip_norm needs the norm of all gradients"),
        ({"layers": ["layers.0", "head"]}, "no layer 'head'"),
    ],
)
def test_arguments_that_cannot_work(model: Small, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        trainer_of(model, **options)


def test_lbfgs_is_refused(model: Small) -> None:
    with pytest.raises(ConfigError, match="LBFGS"):
        trainer_of(model, optimizer=torch.optim.LBFGS(model.parameters()))


def test_a_model_without_layers_runs_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        model = nn.Linear(8, 8)
        trainer = vtensor.Harmony(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=loss_of, microbatches=2)
    assert "found no layers in Linear" in caplog.text
    twin = nn.Linear(8, 8)
    twin.load_state_dict(model.state_dict())
    batch = torch.randn(4, 8)
    trainer.step(batch)
    accumulate(twin, torch.optim.SGD(twin.parameters(), lr=0.1), loss_of, list(batch.split(2)))
    assert torch.equal(model.weight, twin.weight)


def test_layers_that_are_never_called_are_said(caplog: pytest.LogCaptureFixture) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.ModuleDict({"one": nn.Linear(8, 8)}) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer["one"](x)  # type: ignore[index]
            return x

    model = Model()
    with caplog.at_level(logging.WARNING):
        trainer = vtensor.Harmony(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=loss_of, microbatches=2)
        trainer.step(torch.randn(4, 8))
    assert "none of the layers it found is called" in caplog.text


def test_clipping_and_scaling_wait_for_all_gradients(model: Small) -> None:
    twin = Small()
    twin.load_state_dict(model.state_dict())
    other = torch.optim.Adam(twin.parameters(), lr=0.1)
    scalers = [torch.amp.GradScaler("cpu", init_scale=8.0) for _ in range(2)]
    trainer = trainer_of(model, clip_norm=0.01, scaler=scalers[0])
    for _ in range(3):
        batch = torch.randn(6, 8)
        trainer.step(batch)
        for part in batch.split(2):
            scalers[1].scale(loss_of(twin, part) / 3).backward()
        scalers[1].unscale_(other)
        nn.utils.clip_grad_norm_(twin.parameters(), 0.01)
        scalers[1].step(other)
        scalers[1].update()
        other.zero_grad()
    assert same(list(leaves(model.state_dict())), list(leaves(twin.state_dict())))
    assert scalers[0].state_dict() == scalers[1].state_dict()


class CountsInGroups(torch.optim.SGD):
    """As some optimizers of other libraries: the number of steps is one of its group's options."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
            group["lr"] = 0.1 / group["steps"]
        return super().step(closure)


def test_a_step_counts_as_one(model: Small) -> None:
    """For schedulers, and for optimizers that count in their groups."""
    optimizer = CountsInGroups(model.parameters(), lr=0.1)
    trainer = trainer_of(model, optimizer=optimizer)
    for _ in range(3):
        trainer.step(torch.randn(3, 8))
    assert optimizer.param_groups[0]["steps"] == 3
    adam = torch.optim.Adam(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(adam, 1, 0.5)
    trainer = trainer_of(model, optimizer=adam)
    for _ in range(2):
        trainer.step(torch.randn(3, 8))
        schedule.step()
    assert adam.param_groups[0]["lr"] == 0.025
    assert {int(state["step"]) for state in adam.state.values()} == {2}


def test_what_torch_knows_of_a_thread_goes_with_the_program(model: Small) -> None:
    seen = []

    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        seen.append((threading.current_thread().name, torch.get_default_device(), torch.is_autocast_enabled("cpu")))
        return loss_of(model, x)

    with torch.device("cpu"), torch.autocast("cpu", dtype=torch.bfloat16):
        trainer_of(model, loss=loss).step(torch.randn(3, 8))
    assert [thread for thread, *_ in seen] == ["microbatch 0", "microbatch 1", "microbatch 2"]
    assert all(device == torch.device("cpu") and autocast for _, device, autocast in seen)
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("name", ["Prodigy", "DAdaptAdam", "Lookahead", "max_grad_norm"])
def test_optimizers_that_look_at_all_gradients_update_together(name: str) -> None:
    made = type(name, (torch.optim.SGD,), {})([torch.ones(1, requires_grad=True)], lr=0.1)
    if name == "max_grad_norm":
        made.defaults[name] = 1.0
    assert when_to_update("auto", made, None, None) == "together"
    with pytest.raises(ConfigError, match="pass update='together'"):
        when_to_update("packs", made, None, None)
    assert when_to_update("auto", torch.optim.SGD([torch.ones(1, requires_grad=True)]), None, None) == "packs"


def test_a_step_leaves_nothing_to_a_collection_of_garbage() -> None:
    """Microbatches and losses would take room within the budget until there is one."""
    kept: list[weakref.ref[torch.Tensor]] = []

    def split(batch: torch.Tensor) -> list[torch.Tensor]:
        parts = [part.clone() for part in batch.chunk(4)]
        kept.extend(map(weakref.ref, parts))
        return parts

    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    trainer = vtensor.Harmony(
        model, optimizer, loss=lambda net, part: net(part).square().mean(), microbatches=4, split=split
    )
    gc.collect()
    gc.disable()
    try:
        trainer.step(torch.ones(8, 8))
        assert len(kept) == 4 and all(each() is None for each in kept)
    finally:
        gc.enable()
