"""Where iterations end if no optimizer of torch's says so, or says so in the middle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import vtensor
from vtensor.planning.current_planner import wait_for_plan

from ..identity import PAGE, check_identity, same, seeded
from .planned import WIDTH, Net


def updated_by_itself(rows: Callable[[int], int] = lambda _step: 64) -> list[Any]:
    net = Net()
    results = []
    for step in range(20):
        loss = net(torch.randn(rows(step), WIDTH)).square().mean()
        loss.backward()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.sub_(1e-2 * parameter.grad)
                parameter.grad = None
        results.append(loss.detach())
        wait_for_plan()
    return [results, net.state_dict()]


def by_functions() -> list[Any]:
    net = Net()
    parameters = {name: p.detach() for name, p in net.named_parameters()}
    grad = torch.func.grad_and_value(
        lambda given, data: torch.func.functional_call(net, given, (data,)).square().mean()
    )
    results = []
    for _ in range(20):
        gradients, loss = grad(parameters, torch.randn(64, WIDTH))
        parameters = {name: p - 1e-2 * gradients[name] for name, p in parameters.items()}
        results.append(loss.detach())
        wait_for_plan()
    return [results, parameters]


@pytest.mark.parametrize("program", [updated_by_itself, by_functions])
def test_backward_passes_mark_iterations_where_no_optimizer_does(program: Callable[[], list[Any]]) -> None:
    expected = seeded(program)
    with vtensor.enabled(1 << 28, chunk=PAGE, min_size=1):
        seeded(program)
        peak = vtensor.memory_stats()["wanted_bytes.peak"]
    with vtensor.enabled(peak // 2, chunk=PAGE, min_size=1):
        got = seeded(program)
        stats = vtensor.memory_stats()
        assert "no plan" not in vtensor.memory_summary()
    assert same(got, expected)
    assert stats["planned_iterations"] >= 7, stats


def test_optimizers_that_step_within_the_backward_pass() -> None:
    """One for each parameter, as its gradient comes, so that gradients need no memory: the pass ends the iteration."""

    def program() -> list[Any]:
        net, losses = Net(), []
        steppers = {p: torch.optim.AdamW([p], lr=1e-2) for p in net.parameters()}

        def step(p: torch.Tensor) -> None:
            steppers[p].step()
            steppers[p].zero_grad()

        for p in net.parameters():
            p.register_post_accumulate_grad_hook(step)
        for _ in range(10):
            losses.append(loss := net(torch.randn(64, WIDTH)).square().mean())
            loss.backward()
            if vtensor.is_enabled():
                wait_for_plan()
        return [net.state_dict(), [stepper.state_dict()["state"] for stepper in steppers.values()], losses]

    stats = check_identity(program, (0.4,), min_size=1)[-1]
    assert stats["iterations"] == 10 and stats["planned_iterations"] >= 6


def test_step_marks_iterations_where_no_optimizer_does() -> None:
    def whole() -> list[Any]:
        net = Net()
        results = []
        for _ in range(10):
            results.append(net(torch.randn(128, WIDTH)).sum().detach())
            vtensor.step()
            wait_for_plan()
        return results

    expected = seeded(whole)
    with vtensor.enabled(80 << 10, chunk=PAGE, min_size=1):
        got = seeded(whole)
        stats = vtensor.memory_stats()
    assert same(got, expected)
    assert stats["planned_iterations"] >= 4, stats
