"""Programs under a plan: the same bits, planned soon, and planned again after whatever comes between (I4, B8)."""

from __future__ import annotations

import operator
import signal
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import vtensor
from vtensor import native
from vtensor.planning.current_planner import wait_for_plan
from vtensor.planning.planner import Planner

from ..identity import PAGE, check_identity, leaves
from .planned import WIDTH, Trainer, gained, run


def test_a_steady_program_is_planned_after_three_iterations() -> None:
    planned, stats = run(lambda t: [t.step() for _ in range(12)] and None, link="1GB/s")
    # The first iteration is seen in part (observing begins under pressure) and makes the optimizer's state.
    assert gained(planned, 7) == 7, planned
    assert stats["deviations"] == 0
    assert stats["plans"] == 1
    assert stats["timely_arrivals"] > 0


@pytest.mark.parametrize("fraction", [0.75, 0.5, 0.3])
@pytest.mark.parametrize("options", [{}, {"link": "30MB/s"}, {"granularity": "tensor"}], ids=str)
def test_the_same_bits_under_plans(fraction: float, options: dict[str, Any]) -> None:
    run(lambda t: [t.step() for _ in range(10)] and None, fraction, **options)


@pytest.mark.parametrize("policy", ["lru", "size_staleness"])
def test_other_policies_make_no_plans(policy: str) -> None:
    _, stats = run(lambda t: [t.step() for _ in range(8)] and None, policy=policy)
    assert stats["plans"] == stats["planned_iterations"] == 0


def test_delta_brings_back_in_time_what_was_missed() -> None:
    _, stats = run(lambda t: [t.step() for _ in range(12)] and None, policy="delta", link="1GB/s")
    assert stats["timely_arrivals"] > 0


def test_a_budget_that_changes_drops_the_plan_and_finds_a_new_one() -> None:
    def program(t: Trainer) -> None:
        for k in range(20):
            if k == 10 and vtensor.is_enabled():
                vtensor.enable(int(vtensor.memory_stats()["budget_bytes"] * 0.75))
                vtensor.reset_peak_memory_stats()
            t.step()

    planned, _ = run(program, 0.6)
    assert gained(planned, 4) == 4, planned


def test_tensors_of_an_earlier_session_may_die_in_a_later_one() -> None:
    def train(steps: int) -> Trainer:
        trainer = Trainer()
        for _ in range(steps):
            trainer.step()
        return trainer

    settings: dict[str, Any] = {"chunk": PAGE, "min_size": 1, "host": 1 << 30}
    with vtensor.enabled(60 * PAGE, **settings):
        best = train(6)
    with vtensor.enabled(60 * PAGE, **settings):
        for steps in range(1, 7):
            other = Trainer()
            for _ in range(steps):
                other.step()
        best = other  # the first session's tensors are freed while this one records
        best.step()
        assert native.load().validate() == ""


def test_a_session_that_ends_meanwhile_does_not_break_the_optimizer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    with vtensor.enabled(60 * PAGE, chunk=PAGE, min_size=1, host=1 << 30):
        trainer = Trainer()
        monkeypatch.setattr(Planner, "_boundary", partial(operator.truediv, 1, 0))
        trainer.step()
    assert "an iteration went unnoticed" in caplog.text and "division by zero" in caplog.text


def test_what_a_signal_handler_raises_is_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A time limit that rings while the end of a step is noticed."""

    def ring(*_: Any) -> None:
        raise TimeoutError

    with vtensor.enabled(60 * PAGE, chunk=PAGE, min_size=1, host=1 << 30):
        trainer = Trainer()
        monkeypatch.setattr(Planner, "_boundary", lambda _self: signal.raise_signal(signal.SIGALRM))
        before = signal.signal(signal.SIGALRM, ring)
        try:
            with pytest.raises(TimeoutError):
                trainer.step()
        finally:
            signal.signal(signal.SIGALRM, before)


def test_in_place_batch_norm_and_foreach_under_a_plan() -> None:
    def program() -> list[Any]:
        torch.manual_seed(1)
        net = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Flatten(), nn.LazyLinear(10)
        )
        optimizer: torch.optim.Optimizer | None = None  # after the lazy layer knows its size
        losses = []
        for _ in range(8):
            loss = net(torch.randn(4, 3, 16, 16)).square().mean()
            if optimizer is None:
                optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, foreach=True)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            wait_for_plan()
            losses.append(loss.detach())
        return list(leaves([net.state_dict(), losses]))

    runs = check_identity(program, (0.6, 0.4))
    assert runs[0]["planned_iterations"] > 0


class Deep(nn.Module):
    """A chain: nothing is read but by the next layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(24))
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, _: int | None = None) -> torch.Tensor:
        for layer in self.layers:
            x = self.drop(torch.tanh(layer(x)))
        return x


@pytest.mark.parametrize("fraction", [0.3, 0.2])
def test_layers_that_are_run_several_times(fraction: float) -> None:
    planned, stats = run(
        lambda t: [t.step(1024) for _ in range(8)] and None, fraction, make=Deep, recompute="only", min_size=PAGE
    )
    assert gained(planned, 3) == 3, planned
    assert stats["deviations"] == stats["moved_out_bytes"] == 0
