"""Plans where iterations differ: in sizes, in lengths, in what they leave out, in what comes between them."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, cast

import pytest
import torch
from torch import nn

import lgm
import vtensor
from vtensor import planning
from vtensor.planning.maker import PlanMaker

from ..identity import PAGE, mostly_beyond
from .planned import WIDTH, Net, Trainer, gained, run


def test_batch_sizes_that_take_turns_get_a_plan_each() -> None:
    def program(t: Trainer) -> None:
        for k in range(24):
            t.step(rows=64 if k % 2 else 24)

    planned, stats = run(program)
    assert stats["plans"] == 2
    assert gained(planned, 12) == 12, planned


@mostly_beyond
def test_shapes_that_take_turns_are_timed_on_ordered_devices(late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """There one iteration is timed before it is planned: the wish for it must outlive those that follow plans."""
    of_followed, plan = list[bool](), PlanMaker._plan

    def counted(maker: PlanMaker, recording: Any, *rest: Any) -> None:
        of_followed.append(recording.followed)
        plan(maker, recording, *rest)

    monkeypatch.setattr(PlanMaker, "_plan", counted)

    def program(t: Trainer) -> None:
        of_followed.clear()
        for k in range(24):
            t.step(rows=64 if k % 2 else 24)

    planned, stats = run(program, fraction=0.7)
    assert of_followed.count(False) == 2
    assert of_followed.count(True) <= 2  # each may be made once more, of an iteration that followed it
    assert stats["plans"] == len(of_followed)
    assert gained(planned, 8) == 8, planned


def test_a_shape_that_repeats_during_another_analysis_gets_its_plan_later(monkeypatch: pytest.MonkeyPatch) -> None:
    wait = threading.Event()
    analyze = lgm.analyze

    def slow(*given: Any, **options: Any) -> lgm.Plan:
        wait.wait(60)
        return analyze(*given, **options)

    monkeypatch.setattr("vtensor.planning.maker.lgm.analyze", slow)
    monkeypatch.setitem(globals(), "wait_for_plan", lambda: None)  # an analysis takes longer than an iteration

    def program(t: Trainer) -> None:
        for k in range(40):
            t.step(rows=64 if k % 2 else 24)
            if k == 12:
                wait.set()
            elif k > 12 and vtensor.is_enabled():
                planning.wait_for_plan()

    planned, stats = run(program)
    assert stats["plans"] == 2
    assert gained(planned, 12) == 12, planned


def test_sizes_a_few_percent_apart_share_a_plan() -> None:
    def program(t: Trainer) -> None:
        for k in range(16):
            t.step(rows=(126, 120, 124)[k % 3])

    planned, stats = run(program)
    assert stats["plans"] == 1
    assert gained(planned, 8) == 8, planned


def test_the_first_plan_is_made_of_the_largest_so_far() -> None:
    """It is followed by what allocates less, and not by what allocates more."""

    def program(t: Trainer) -> None:
        for rows in (70, 120, 70, 70, 70, 115, 110, 120):
            t.step(rows=rows)

    planned, stats = run(program)
    assert gained(planned, 3) == 3, planned
    assert stats["plans"] == 1


def test_a_new_size_is_planned_within_three_stable_iterations() -> None:
    def program(t: Trainer) -> None:
        for _ in range(8):
            t.step(rows=64)
        for _ in range(8):
            t.step(rows=200)

    planned, stats = run(program)
    assert stats["plans"] == 2
    assert gained(planned, 5) == 5, planned


class Wide(nn.Module):
    """Gradients are most of what an iteration allocates, and of one size whatever the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, 12 * WIDTH), nn.Tanh(), nn.Linear(12 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor, stop: int | None = None) -> torch.Tensor:
        return self.layers[:stop](x)


def test_a_batch_that_is_small_beside_the_weights_gets_a_plan() -> None:
    def program(t: Trainer) -> None:
        for _ in range(8):
            t.step(rows=40)
        for _ in range(10):
            t.step(rows=12)

    planned, stats = run(program, fraction=0.5, make=Wide)
    assert stats["plans"] == 2
    assert gained(planned, 6) == 6, planned


class Attention(nn.Module):
    """A language model in small: embedding, one layer of attention, a tied head."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(64, WIDTH)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.1, batch_first=True)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.layer(self.words(tokens)) @ self.words.weight.T


@pytest.mark.parametrize("lengths", [(32,), (32, 64), (24, 40, 64)], ids=str)
def test_sequence_lengths_in_buckets_get_a_plan_each(lengths: tuple[int, ...]) -> None:
    def program(t: Trainer) -> None:
        for k in range(8 * len(lengths)):
            tokens = torch.randint(0, 64, (8, lengths[k % len(lengths)]))
            t.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(t.net(tokens).flatten(0, 1), tokens.flatten())
            loss.backward()
            t.finish(loss)

    planned, stats = run(program, make=Attention)
    assert stats["plans"] == len(lengths)
    assert gained(planned, 3 * len(lengths)) == 3 * len(lengths), planned


def test_a_length_of_its_own_in_every_step_follows_the_plan_of_one_that_is_near() -> None:
    def program(t: Trainer) -> None:
        for k in range(60):
            tokens = torch.randint(0, 64, (8, 32 + 37 * k % 64))
            t.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(t.net(tokens).flatten(0, 1), tokens.flatten())
            loss.backward()
            t.finish(loss)

    planned, stats = run(program, make=Attention)
    assert gained(planned, 30) >= 27, planned
    assert 2 <= stats["plans"] <= 8


def test_a_validation_pass_every_few_steps() -> None:
    def program(t: Trainer) -> None:
        for k in range(20):
            t.step()
            if k % 5 == 4:
                t.net.eval()
                with torch.no_grad():
                    t.losses.append(t.net(torch.randn(256, WIDTH)).mean())
                t.net.train()

    planned, _ = run(program)
    # Of every five iterations four are planned; the fifth begins with the validation pass.
    assert gained(planned, 10) >= 8, planned


class Experts(nn.Module):
    """Layers of which each is run on some of the rows, or on none."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(8)) for _ in range(6))

    def forward(self, x: torch.Tensor, stop: int | None = None) -> torch.Tensor:
        for layer in self.layers:
            whose = torch.randint(16, (len(x),)) % 11  # from 8 on nobody's
            whose[whose == int(torch.randint(8, ()))] = 8
            for k, expert in enumerate(cast(nn.ModuleList, layer)):
                if len(rows := (whose == k).nonzero().flatten()):
                    x = x.index_add(0, rows, torch.tanh(expert(x[rows])))
        return x


def test_layers_left_out_at_random() -> None:
    class Drops(Net):
        def __init__(self) -> None:
            super().__init__(depth=16)

        def forward(self, x: torch.Tensor, stop: int | None = None) -> torch.Tensor:
            for layer in self.layers:
                if float(torch.rand(())) > 0.05:
                    x = x + self.drop(torch.tanh(layer(x)))
            return x

    planned, stats = run(lambda t: [t.step() for _ in range(24)] and None, make=Drops, link="1GB/s")
    assert planned[-1] < 20  # others left one layer or more out
    assert stats["rejoined"] >= stats["deviations"] >= 4
    assert stats["operations"] > stats["planned_operations"] >= 0.75 * stats["operations"] > 0


def test_iterations_of_which_no_two_are_alike() -> None:
    planned, stats = run(lambda t: [t.step() for _ in range(20)] and None, 0.25, make=Experts, link="1GB/s")
    assert planned[-1] == 0
    assert stats["plans"] >= 1
    assert stats["rejoined"] >= 15
    assert stats["operations"] > stats["planned_operations"] >= 0.5 * stats["operations"] > 0
    assert stats["timely_arrivals"] > 0


def test_an_early_exit() -> None:
    def program(t: Trainer) -> None:
        for k in range(24):
            t.step(stop=3 if k % 6 == 5 else None)

    planned, _ = run(program)
    assert gained(planned, 12) >= 10, planned


def test_an_exception_in_the_middle_of_an_iteration() -> None:
    def program(t: Trainer) -> None:
        for k in range(16):
            if k == 9:
                with contextlib.suppress(RuntimeError):
                    t.net(torch.randn(64, WIDTH)) @ torch.randn(3, 3)
            t.step()

    planned, stats = run(program)
    assert stats["deviations"] == 1
    assert gained(planned, 5) == 5, planned


def test_gradient_accumulation_with_changing_counts() -> None:
    def program(t: Trainer) -> None:
        for k in range(24):
            t.optimizer.zero_grad()
            for _ in range(1 + k // 8):
                loss = t.net(torch.randn(64, WIDTH)).square().mean()
                loss.backward()
            t.finish(loss)

    planned, stats = run(program)
    assert stats["plans"] == 3
    assert gained(planned, 4) == 4, planned


def test_logging_now_and_then_changes_nothing() -> None:
    seen: list[float] = []

    def program(t: Trainer) -> None:
        for k in range(14):
            t.step()
            if k % 3 == 0:
                seen.append(t.losses[-1].item())

    _, stats = run(program, min_size=PAGE // 2)
    assert stats["deviations"] == 0
    assert stats["planned_iterations"] >= 8


def test_two_optimizers_that_take_turns() -> None:
    def program(t: Trainer) -> None:
        other = Trainer(torch.optim.SGD)
        other.finish = lambda loss: other.optimizer.step()  # type: ignore[method-assign]
        for _ in range(14):
            t.step()
            other.step()

    planned, _ = run(program)
    assert gained(planned, 6) == 6, planned
