"""What the summary says where no plan is followed."""

from __future__ import annotations

import threading

import pytest
import torch

import lgm
import vtensor

from ..identity import PAGE
from . import planned
from .planned import Trainer


def test_a_summary_says_why_there_is_no_plan() -> None:
    with vtensor.enabled(2 * PAGE, chunk=PAGE, min_size=1, host=1 << 30):
        trainer = Trainer()
        for _ in range(6):
            trainer.step(rows=400)
        assert "no plan: a budget of" in vtensor.memory_summary()


def test_a_summary_says_that_no_iteration_ends() -> None:
    """Parameters that the program updates by itself."""
    with vtensor.enabled(12 * PAGE, chunk=PAGE, min_size=1, host=1 << 30):
        assert "no plan: everything fits" in vtensor.memory_summary()
        weight = torch.randn(64, 64, requires_grad=True)
        for _ in range(4):
            (gradient,) = torch.autograd.grad((torch.randn(128, 64) @ weight).square().mean(), weight)
            weight.data.sub_(gradient)
        assert "no plan: no iteration ended" in vtensor.memory_summary()
        vtensor.step()
        assert "no iteration ended" not in vtensor.memory_summary()


def test_a_summary_says_that_each_step_has_a_thread_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    with vtensor.enabled(320 << 10, chunk=PAGE, min_size=1, host=1 << 30):
        trainer = Trainer()
        for _ in range(6):
            (thread := threading.Thread(target=trainer.step)).start()
            thread.join()
        assert "is there a new one for each step?" in vtensor.memory_summary()
    assert not caplog.records


def test_a_summary_says_that_the_first_plan_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    wait = threading.Event()
    analyze = lgm.analyze
    monkeypatch.setattr("vtensor.planning.maker.lgm.analyze", lambda *a, **k: wait.wait(60) and analyze(*a, **k))
    monkeypatch.setattr(planned, "wait_for_plan", lambda: None)
    with vtensor.enabled(320 << 10, chunk=PAGE, min_size=1):
        trainer = Trainer()
        for _ in range(6):
            trainer.step()
        assert "no plan: the first is still being made" in vtensor.memory_summary()
        wait.set()
