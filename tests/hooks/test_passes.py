"""Who is told of backward passes, and of which."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from vtensor.hooks.passes import Thread, tell_of_passes
from vtensor.hooks.patches import restore

Told = list[tuple[Thread, bool]]


@pytest.fixture
def told() -> Iterator[Told]:
    passes: Told = []
    tell_of_passes(lambda thread, accumulated: passes.append((thread, accumulated)))
    yield passes
    restore()


def loss(weight: torch.Tensor) -> torch.Tensor:
    return (weight * torch.arange(4.0)).square().sum()


def test_each_pass_of_the_program_is_told_once(told: Told) -> None:
    weight = torch.ones(4, requires_grad=True)
    loss(weight).backward()
    torch.autograd.grad(loss(weight), weight)
    torch.func.grad(loss)(torch.ones(4))
    torch.func.vmap(torch.func.grad(loss))(torch.ones(3, 4))
    assert [accumulated for _, accumulated in told] == [True, False, False, False]
    assert len({id(thread) for thread, _ in told}) == 1


def test_those_within_another_are_not(told: Told) -> None:
    weight = torch.ones(4, requires_grad=True)
    checkpoint(loss, weight, use_reentrant=True).backward()
    assert [accumulated for _, accumulated in told] == [True]


def test_one_that_fails_is_not(told: Told) -> None:
    value = loss(torch.ones(4, requires_grad=True))
    value.backward()
    with pytest.raises(RuntimeError, match="second time"):
        value.backward()
    assert len(told) == 1


def test_threads_are_told_apart(told: Told) -> None:
    def train() -> None:
        for _ in range(2):
            loss(torch.ones(4, requires_grad=True)).backward()

    train()
    (other := threading.Thread(target=train)).start()
    other.join()
    threads = [thread for thread, _ in told]
    assert threads[0] is threads[1] is not threads[2] is threads[3]


def test_it_ends_with_the_session() -> None:
    run = torch.autograd._engine_run_backward
    tell_of_passes(lambda *_: None)
    assert torch.autograd._engine_run_backward is not run
    restore()
    assert torch.autograd._engine_run_backward is run
