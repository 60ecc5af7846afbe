"""Harmony's order gives the bits of the ordinary loop: V1."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import vtensor
from vtensor.harmony.microbatches import cut

from ..identity import PAGE, check_identity, leaves, mostly_beyond, same
from .models import MODELS, OPTIMIZERS, Made, accumulate, gpt2, threads_left

STEPS, COUNT = 3, 4


def state(model: torch.nn.Module, optimizer: torch.optim.Optimizer, drew: bool) -> list[Any]:
    generator = None if drew else torch.get_rng_state()  # which goes on where the first microbatch left it
    return list(leaves((model.state_dict(), optimizer.state_dict(), generator)))


def both(
    make: Callable[[], Made], optimizer: Callable[[Any], torch.optim.Optimizer], seeded: bool = False, **options: Any
) -> vtensor.Harmony:
    """Train a model and its copy, one in each order, and compare them after each step."""
    torch.manual_seed(0)
    model, batch, loss = make()
    model.train()
    other = copy.deepcopy(model)
    one, two = optimizer(model.parameters()), optimizer(other.parameters())
    trainer = vtensor.Harmony(model, one, loss=loss, microbatches=COUNT, **options)
    for step in range(STEPS):
        data = batch()
        before = torch.get_rng_state()
        got = trainer.step(data)
        after = state(model, one, seeded)
        torch.set_rng_state(before)
        expected = accumulate(other, two, loss, cut(data, COUNT), trainer.seeds if seeded else None)
        assert torch.equal(got, expected), step
        assert same(after, state(other, two, seeded)), step
    assert not threads_left()
    assert all(p.grad is None for group in one.param_groups for p in group["params"])
    return trainer


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", sorted(MODELS))
def test_the_same_bits(name: str, recompute: bool) -> None:
    trainer = both(MODELS[name], OPTIMIZERS["adamw"], recompute=recompute)
    assert len(trainer.packs) == (0 if name == "albert" else len(trainer.packs)) != 1


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("packs", [1, 2, 3])
def test_any_packs_and_optimizers(optimizer: str, packs: int) -> None:
    assert len(both(gpt2, OPTIMIZERS[optimizer], packs=packs).packs) == packs


@pytest.mark.parametrize("recompute", [False, True])
def test_dropout_draws_what_each_microbatch_would_by_itself(recompute: bool) -> None:
    trainer = both(lambda: gpt2(dropout=0.1), OPTIMIZERS["adamw"], seeded=True, recompute=recompute)
    assert len(set(trainer.seeds)) == COUNT - 1


def test_autocast_holds_in_every_microbatch() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        both(gpt2, OPTIMIZERS["adamw"], recompute=True)


def check(name: str, recompute: bool, fractions: tuple[float, ...], steps: int = 5, overdraw: bool = False) -> None:
    """Also by a plan."""

    def program() -> Any:
        model, batch, loss = MODELS[name]()
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        where = {"optimizer_on": "device"}  # with states on the host some of them would fit
        trainer = vtensor.Harmony(model, optimizer, loss=loss, microbatches=3, recompute=recompute, **where)
        losses = []
        for _ in range(steps):
            losses.append(trainer.step(batch()))
            vtensor.planning.wait_for_plan()
        return losses, model.state_dict(), optimizer.state_dict(), torch.get_rng_state()

    runs = check_identity(program, fractions, min_size=PAGE // 2, overdraw=overdraw)
    # Where one operation needs more than the budget there is no plan.
    assert all(run["planned_iterations"] > 0 or run["oversize"] > 0 for run in runs)
    assert all(steps - run["iterations"] in (0, 1) for run in runs)  # not one in which nothing had to leave yet


def test_under_a_budget() -> None:
    check("resnet", True, (0.35,))


@mostly_beyond
def test_on_an_ordered_device(late: bool) -> None:
    check("gpt2", False, (0.5,), steps=7, overdraw=not late)


@pytest.mark.long
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", sorted(MODELS.keys() - {"albert", "experts"}))
def test_every_model_under_every_budget(name: str, recompute: bool) -> None:
    """Down to little more than the largest pack."""
    check(name, recompute, (0.75, 0.5, 0.35, 0.25), steps=7)


@pytest.mark.long
def test_weights_are_read_as_often_whatever_the_number_of_microbatches() -> None:
    """3|W| and states, where the ordinary loop reads more for each microbatch."""
    moved = {}
    for count in (2, 8):
        for woven in (True, False):
            torch.manual_seed(0)
            with vtensor.enabled(1200 << 10, chunk=PAGE, min_size=1, host=1 << 30, policy="lru"):
                model, batch, loss = gpt2()
                optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
                trainer = vtensor.Harmony(model, optimizer, loss=loss, microbatches=count, recompute=True)
                data = batch()
                for step in range(3):
                    if step == 2:
                        before = vtensor.memory_stats()["moved_in_bytes"]
                    if woven:
                        trainer.step(data)
                    else:
                        accumulate(model, optimizer, loss, cut(data, count))
                moved[count, woven] = vtensor.memory_stats()["moved_in_bytes"] - before
    assert moved[8, True] < 1.5 * moved[2, True]
    assert moved[8, False] > 3 * moved[8, True] and moved[8, False] > 1.5 * moved[2, False]
