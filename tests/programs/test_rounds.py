"""Loops of which nobody tells where an iteration ends: inference, evaluation, generation. They are planned, too."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import vtensor
from vtensor import native
from vtensor.planning.current_planner import newest_plan, wait_for_plan
from vtensor.planning.traces import recorded_trace

from ..identity import PAGE, same

WIDTH = 64  # a weight is four pages
DEPTH = 12
BUDGET = 30 * PAGE  # the weights are 48


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + self.drop(torch.tanh(layer(x)))
        return x


def infer(net: nn.Module, batches: int, rows: int = 40) -> list[torch.Tensor]:
    """Each is seeded by its number. A plan under way is waited for: these batches are shorter than making one."""
    made = []
    net.eval()
    with torch.no_grad():
        for k in range(batches):
            generator = torch.Generator().manual_seed(k)
            made.append(net(torch.randn(rows, WIDTH, generator=generator)).sum(0))
            wait_for_plan()
    return made


def train(net: nn.Module, steps: int) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    net.train()
    losses = []
    for k in range(steps):
        x = torch.randn(24, WIDTH, generator=torch.Generator().manual_seed(k))
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        wait_for_plan()
    return losses


def run(program: Callable[[], list[torch.Tensor]], **options: Any) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """What it returns under a budget, and what the core counted; checks that it is what it returns without one."""
    torch.manual_seed(0)
    plain = [tensor.clone() for tensor in program()]
    options = {"budget": BUDGET, "chunk": PAGE, "min_size": 2048, "host": 1 << 30, **options}
    with vtensor.enabled(**options):
        torch.manual_seed(0)
        got = [tensor.clone() for tensor in program()]
        core = native.load()
        counted = {**core.snapshot(), **core.plan_counters(), "summary": vtensor.memory_summary()}
    assert same(got, plain)
    return got, counted


def test_an_inference_is_planned_after_a_few_rounds() -> None:
    _, counted = run(lambda: infer(Net(), 40))
    assert counted["planned_iterations"] >= 30
    assert 35 <= counted["iterations"] <= 40
    assert "no plan" not in counted["summary"]


def test_it_brings_less_back_than_without_a_plan() -> None:
    """What was used longest ago is what a loop uses next: without a plan all weights come back in each round."""
    _, planned = run(lambda: infer(Net(), 40))
    _, reactive = run(lambda: infer(Net(), 40), policy="lru")
    assert planned["moved_in_bytes"] < 0.75 * reactive["moved_in_bytes"]
    assert reactive["iterations"] == 0


def test_on_an_ordered_device(late: bool) -> None:
    _, counted = run(lambda: infer(Net(), 40))
    assert counted["planned_iterations"] >= 25


def test_under_delta_which_makes_no_plans() -> None:
    _, counted = run(lambda: infer(Net(), 20), policy="delta")
    assert 15 <= counted["iterations"] <= 20
    assert counted["arrivals"] > 0 or counted["drops"] > 0  # where copies seem slow, weights are drawn again instead


def test_batches_of_any_size() -> None:
    def program() -> list[torch.Tensor]:
        net = Net()
        return [tensor for k in range(30) for tensor in infer(net, 1, rows=20 + k % 7)]

    _, counted = run(program)
    assert counted["planned_iterations"] >= 15


def test_tokens_of_a_generation_with_a_cache_that_grows() -> None:
    def program() -> list[torch.Tensor]:
        net, made = Net().eval(), []
        with torch.no_grad():
            for _ in range(3):  # generations
                cache = [torch.zeros(1, WIDTH) for _ in range(DEPTH)]
                token = torch.randn(1, WIDTH)
                for _ in range(24):
                    for k, layer in enumerate(net.layers):
                        cache[k] = torch.cat((cache[k], torch.tanh(layer(token))))
                        token = token + torch.softmax(token @ cache[k].T, -1) @ cache[k]
                    wait_for_plan()
                made.append(token)
        return made

    _, counted = run(program, budget=40 * PAGE, recompute="never")
    assert 60 <= counted["iterations"] <= 72
    assert counted["planned_iterations"] >= 20


def test_evaluations_between_epochs_are_planned_and_the_training_stays_planned() -> None:
    def program() -> list[torch.Tensor]:
        net, results = Net(), []
        for _ in range(3):
            results += train(net, 12)
            results += infer(net, 60)
        return results

    _, counted = run(program, budget=45 * PAGE)
    told = 3 * 12
    assert counted["iterations"] >= told + 3 * 50
    assert counted["planned_iterations"] >= 2 * 10 + 2 * 45
    assert counted["iterations"] <= told + 3 * 60


def test_a_program_that_trains_has_no_other_iterations() -> None:
    _, counted = run(lambda: train(Net(), 30), budget=60 * PAGE)
    assert counted["iterations"] == 30


def test_batches_that_are_accumulated_are_no_iterations_once_an_optimizer_was_heard() -> None:
    def program() -> list[torch.Tensor]:
        net, losses = Net(), []
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
        for k in range(7):
            for part in range(6):
                x = torch.randn(24, WIDTH, generator=torch.Generator().manual_seed(6 * k + part))
                (loss := net(x).square().mean()).backward()
                losses.append(loss.detach())
            optimizer.step()
            optimizer.zero_grad()
            if k == 0 and vtensor.is_enabled():
                before.append(native.load().plan_counters()["iterations"])
            wait_for_plan()
        return losses

    before: list[int] = []
    _, counted = run(program, budget=60 * PAGE, recompute="never")
    assert counted["iterations"] == before[0] + 6


def test_step_is_believed_instead() -> None:
    def program() -> list[torch.Tensor]:
        net, made = Net(), []
        for _ in range(20):
            made += infer(net, 2)
            vtensor.step()
        return made

    _, counted = run(program)
    assert counted["iterations"] <= 20 + 4  # before it was heard
    assert counted["planned_iterations"] >= 12


def test_step_before_a_loop_is_believed_from_its_first_round_on() -> None:
    """Else the time steps of a decoder would be taken for iterations, in the first forward of all."""

    def program() -> list[torch.Tensor]:
        net, made = Net(), []
        vtensor.step()
        before.append(native.load().plan_counters()["iterations"])
        for _ in range(3):
            made += infer(net, 12)
            vtensor.step()
        return made

    before: list[int] = []
    _, counted = run(program)
    assert counted["iterations"] == before[-1] + 3


def in_a_thread(work: Callable[[], list[torch.Tensor]]) -> list[torch.Tensor]:
    """What the core finds is told between two lines of the main thread's, which has some meanwhile."""
    made: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: made.extend(work()))
    thread.start()
    while thread.is_alive():
        thread.join(0.01)
    return made


@pytest.mark.parametrize("threads", [1, 10], ids=["one thread", "a thread for each request"])
def test_in_other_threads_than_the_one_that_loaded_the_weights(threads: int) -> None:
    def program() -> list[torch.Tensor]:
        net = Net()
        net.load_state_dict({name: value.clone() for name, value in net.state_dict().items()})  # finds some away
        return [tensor for _ in range(threads) for tensor in in_a_thread(lambda: infer(net, 60 // threads))]

    _, counted = run(program)
    assert counted["iterations"] >= 20
    assert counted["planned_iterations"] >= (20 if threads == 1 else 1)


def test_layers_whose_weights_are_stacked() -> None:
    """One tensor, of which each layer uses a part."""

    def program() -> list[torch.Tensor]:
        weights, made = torch.randn(DEPTH, WIDTH, WIDTH) / 8, []
        for _ in range(40):
            x = torch.randn(40, WIDTH)
            for k in range(DEPTH):
                x = torch.tanh(x @ weights[k])
            made.append(x.sum(0))
            wait_for_plan()
        return made

    _, counted = run(program)
    assert counted["iterations"] <= 40
    assert counted["planned_iterations"] >= 25


class Double(torch.autograd.Function):
    """Its kernels are the user's; what is called within it are operations all the same."""

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ weight.T)


def test_layers_that_are_functions_of_the_users() -> None:
    def program() -> list[torch.Tensor]:
        net, made = Net(), []
        with torch.no_grad():
            for _ in range(40):
                x = torch.randn(40, WIDTH)
                for layer in net.layers:
                    x = Double.apply(x, layer.weight)
                made.append(x.sum(0))
                wait_for_plan()
        return made

    _, counted = run(program)
    assert counted["planned_iterations"] >= 25


def test_a_trace_of_an_inference_is_recorded() -> None:
    with vtensor.enabled(BUDGET, chunk=PAGE, min_size=2048, host=1 << 30):
        vtensor.record()
        net = Net()
        infer(net, 20)
        trace = recorded_trace()
        plan = newest_plan()
        assert plan is not None
        assert trace.operations == plan.recorded.operations


def test_one_model_after_the_other() -> None:
    _, counted = run(lambda: infer(Net(), 30) + infer(Net(), 30))
    assert counted["planned_iterations"] >= 40


def test_a_session_after_another_begins_anew() -> None:
    for _ in range(3):
        _, counted = run(lambda: infer(Net(), 30))
        assert 25 <= counted["iterations"] <= 30


def test_what_fits_has_no_rounds() -> None:
    _, counted = run(lambda: infer(Net(), 20), budget=66 * PAGE)  # it wants 60, and operations are observed from 3/4 on
    assert counted["iterations"] == 0
    assert "everything fits" in counted["summary"]
