"""Programs under a plan: the same bits, planned soon, and planned again after whatever comes between (I4, B8)."""

from __future__ import annotations

import contextlib
import itertools
import operator
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn

import lgm
import vtensor
from lgm.fitting import GPUS, on_gpu
from lgm.iteration import analyze_lifetimes
from vtensor import native, planning
from vtensor.planning.current_planner import wait_for_plan
from vtensor.planning.maker import PlanMaker
from vtensor.planning.planner import Planner
from vtensor.planning.recordings import make_recording
from vtensor.settings.sizes import parse_bytes

from ..identity import PAGE, check_identity, leaves, mostly_beyond, same, seeded

WIDTH = 48


class Net(nn.Module):
    def __init__(self, depth: int = 6) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(depth))
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, stop: int | None = None) -> torch.Tensor:
        for layer in self.layers[:stop]:
            x = x + self.drop(torch.tanh(layer(x)))
        return x


class Trainer:
    """Trains step by step; `planned` says after each step how many iterations have followed a plan so far."""

    def __init__(self, optimizer: Callable[..., Any] = torch.optim.AdamW, make: Callable[[], nn.Module] = Net) -> None:
        self.net = make()
        self.optimizer = optimizer(self.net.parameters(), lr=1e-2)
        self.losses: list[torch.Tensor] = []
        self.planned: list[int] = []
        self.deviations = 0

    def step(self, rows: int = 64, stop: int | None = None) -> None:
        self.optimizer.zero_grad()
        loss = self.net(torch.randn(rows, WIDTH), stop).square().mean()
        loss.backward()
        self.finish(loss)

    def finish(self, loss: torch.Tensor) -> None:
        self.optimizer.step()
        self.losses.append(loss.detach())
        if vtensor.is_enabled():
            wait_for_plan()
            stats = vtensor.memory_stats()
            self.planned.append(stats["planned_iterations"])
            self.deviations = stats["deviations"]

    def result(self) -> list[Any]:
        return [self.net.state_dict(), self.optimizer.state_dict()["state"], self.losses]


def run(
    program: Callable[[Trainer], None],
    fraction: float = 0.4,
    make: Callable[[], nn.Module] = Net,
    overdraws: bool = False,
    **options: Any,
) -> tuple[list[int], dict[str, Any]]:
    """Train plain and under a budget; the bits must be the same. Returns what was planned when, and the statistics."""
    trainers: list[Trainer] = []

    def whole() -> list[Any]:
        trainers.append(Trainer(make=make))
        program(trainers[-1])
        return trainers[-1].result()

    settings = {"chunk": PAGE, "min_size": 1, "host": 1 << 30, **options}
    expected = seeded(whole)
    with vtensor.enabled(1 << 28, **settings):
        seeded(whole)
        peak = vtensor.memory_stats()["wanted_bytes.peak"]
    with vtensor.enabled(int(peak * fraction), **settings):
        got = seeded(whole)
        stats = vtensor.memory_stats()
        assert native.load().validate() == ""
    assert same(got, expected)
    assert stats["held_bytes.peak"] <= stats["budget_bytes"] + overdraws * stats["overdrawn_bytes.peak"]
    assert stats["drops" if options.get("recompute") == "only" else "evictions"] > 0
    return trainers[-1].planned, stats | {"deviations": trainers[-1].deviations}


def gained(planned: list[int], last: int) -> int:
    return planned[-1] - planned[-1 - last]


def test_a_steady_program_is_planned_after_three_iterations() -> None:
    planned, stats = run(lambda t: [t.step() for _ in range(12)] and None, link="1GB/s")
    # The first iteration is seen in part (observing begins under pressure) and makes the optimizer's state.
    assert gained(planned, 7) == 7, planned
    assert stats["deviations"] == 0
    assert stats["plans"] == 1
    assert stats["prefetch_hits"] > 0
    assert stats["exposed_copy_seconds"] >= 0


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
    assert stats["prefetch_hits"] > 0


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
    assert stats["planned_operations"] >= 0.75 * stats["operations"] > 0


def test_iterations_of_which_no_two_are_alike() -> None:
    planned, stats = run(lambda t: [t.step() for _ in range(20)] and None, 0.25, make=Experts, link="1GB/s")
    assert planned[-1] == 0
    assert stats["plans"] >= 1
    assert stats["rejoined"] >= 15
    assert stats["planned_operations"] >= 0.5 * stats["operations"] > 0
    assert stats["prefetch_hits"] > 0


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


@pytest.mark.parametrize("fraction", [0.06, 0.03], ids=["uses", "makes"])
@pytest.mark.parametrize("options", [{}, {"link": "100MB/s"}, {"recompute": "never"}], ids=str)
def test_a_plan_where_one_operation_needs_more_than_the_budget(options: dict[str, Any], fraction: float) -> None:
    planned, stats = run(lambda t: [t.step(rows=400) for _ in range(10)] and None, fraction, **options)
    assert gained(planned, 4) == 4
    assert stats["deviations"] == 0
    assert stats["oversize"] > 0


@mostly_beyond
@pytest.mark.parametrize("fraction", [0.06, 0.03], ids=["uses", "makes"])
def test_such_a_plan_is_followed_on_ordered_devices(late: bool, fraction: float) -> None:
    planned, stats = run(lambda t: [t.step(rows=400) for _ in range(10)] and None, fraction, overdraws=not late)
    assert gained(planned, 4) == 4
    assert (stats["borrowed_bytes.peak"] if late else stats["overdrawn_bytes.peak"]) > 0


def test_no_plan_where_one_operation_has_more_tensors_than_there_are_chunks(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="vtensor"), vtensor.enabled(2 * PAGE, chunk=PAGE, min_size=1):
        trainer = Trainer()
        for _ in range(8):
            trainer.step(rows=400)
        stats = vtensor.memory_stats()
    assert stats["planned_iterations"] == 0
    assert "has more tensors than that has chunks. There is a plan from 16.00 KiB on" in caplog.text


def test_where_too_little_can_be_made_again_a_plan_is_for_more_than_the_budget(
    caplog: pytest.LogCaptureFixture,
) -> None:
    planned, stats = run(lambda t: [t.step() for _ in range(12)] and None, 0.3, recompute="only")
    assert gained(planned, 4) == 4
    assert stats["deviations"] == 0 and stats["evictions"] == 0
    assert stats["held_bytes.peak"] <= stats["budget_bytes"] < needed(caplog)
    assert 0 < stats["borrowed_bytes.peak"] <= needed(caplog)


@mostly_beyond
def test_such_a_plan_is_followed_on_ordered_devices_too(late: bool, caplog: pytest.LogCaptureFixture) -> None:
    program: Any = lambda t: [t.step() for _ in range(12)] and None  # noqa: E731
    planned, stats = run(program, 0.3, recompute="only", overdraws=not late)
    assert gained(planned, 4) == 4 and stats["evictions"] == 0
    assert stats["budget_bytes"] < needed(caplog)


def needed(caplog: pytest.LogCaptureFixture) -> int:
    """What plans are made for, by the one warning."""
    (warning,) = [record.getMessage() for record in caplog.records if record.module == "maker"]
    assert "allow copies (recompute='auto')" in warning
    found = re.search(r"Planned for ([^;]+);", warning)
    assert found is not None, warning
    return parse_bytes(found[1], "needed")


def test_a_budget_that_changes_drops_the_plan_and_finds_a_new_one() -> None:
    def program(t: Trainer) -> None:
        for k in range(20):
            if k == 10 and vtensor.is_enabled():
                vtensor.enable(int(vtensor.memory_stats()["budget_bytes"] * 0.75))
                vtensor.reset_peak_memory_stats()
            t.step()

    planned, _ = run(program, 0.6)
    assert gained(planned, 4) == 4, planned


# --- files -------------------------------------------------------------------------------------------------


def save_trace(path: Path, rows: int = 64) -> None:
    vtensor.record()
    trainer = Trainer()
    for _ in range(4):
        trainer.step(rows)
    vtensor.save_trace(path, model="net")


@pytest.fixture
def trace(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "trace.npz"
    with vtensor.enabled(1 << 28, chunk=PAGE, min_size=1):
        save_trace(path)
    yield path


def test_a_trace_is_what_happened(trace: Path) -> None:
    read = lgm.load_trace(trace)
    assert read.meta["model"] == "net"
    assert read.meta["torch"] == torch.__version__
    assert any("addmm" in name for name in read.names)
    lasting = (read.tensor_born < 0) & (read.tensor_died < 0)
    assert lasting.sum() >= 6 * 2 * 3  # weights and biases, each with two states
    wraps = (read.tensor_died >= 0) & (read.tensor_died < read.tensor_born)
    assert wraps.sum() >= 6 * 2  # gradients live until zero_grad of the next iteration


def test_a_trace_knows_what_it_would_take_on_a_gpu(trace: Path) -> None:
    read = lgm.load_trace(trace)
    there = on_gpu(read, GPUS["h100"])
    assert 0 < there.seconds < read.seconds


def test_what_an_operation_frees_before_it_allocates_is_not_held_twice() -> None:
    # The backward of a convolution frees what it unfolded before it makes the next gradient.
    net = nn.Sequential(*[nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU()) for _ in range(4)])
    with vtensor.enabled(1 << 28, chunk=PAGE, min_size=1):
        vtensor.record()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(4):
            vtensor.reset_peak_memory_stats()
            optimizer.zero_grad()
            net(torch.randn(4, 8, 40, 40)).square().mean().backward()
            optimizer.step()
        raw = native.load().recorded_iteration()
        peak = lgm.iteration.analyze_lifetimes(make_recording(raw, PAGE).trace).peak
        assert peak * PAGE == vtensor.memory_stats()["used_bytes.peak"]


def recorded(*pauses: float) -> list[dict[str, Any]]:
    """The same iteration, with something else to wait for, over and over; what is known of each."""
    with vtensor.enabled(1 << 28, chunk=PAGE, min_size=1, policy="lru"):
        vtensor.record()
        known = []
        for pause in pauses:
            x = torch.randn(WIDTH, WIDTH)
            for _ in range(8):
                x = x * 1.01
            time.sleep(pause)
            vtensor.step()
            known.append(native.load().recorded_iteration())
    return known


def test_rows_have_the_times_of_the_quickest_and_an_iteration_its_own() -> None:
    *_, quick, slow = recorded(0, 0, 0, 0.05)
    assert slow["took"] >= 0.05e9 > quick["took"] > 0
    assert slow["end"] - slow["op_begin"][0] <= quick["took"]


def test_whoever_records_knows_how_long_each_iteration_took_on_an_ordered_device(late: bool) -> None:
    first, *others = recorded(0, 0, 0, 0, 0)
    assert first["took"] == 0  # nobody had asked when it began: its times are those of the thread
    assert all(each["took"] > 0 for each in others)


@pytest.mark.parametrize("rows", [64, 8], ids=["activations", "weights"])
def test_a_plan_from_a_file_is_followed_from_the_start(rows: int, tmp_path: Path) -> None:
    trace = tmp_path / "trace.npz"
    settings = {"chunk": PAGE, "min_size": 2 * PAGE}  # no biases: all that lasts is of one size
    with vtensor.enabled(1 << 28, **settings):
        save_trace(trace, rows)
    read = lgm.load_trace(trace)
    path = tmp_path / "plan.npz"
    peak = int(lgm.iteration.analyze_lifetimes(read).peak)
    plan = lgm.analyze(read, lgm.Device(peak // 2, 1e9, 1e9))
    lgm.save_plan(plan, path)

    arrived: list[int] = []

    def whole() -> list[Any]:
        trainer = Trainer()
        for _ in range(16):
            trainer.step(rows)
            if vtensor.is_enabled():
                stats = vtensor.memory_stats()
                brought = stats["prefetch_hits"] + stats["late_arrivals"]
                arrived.append(brought + stats["cancels"])  # still leaving when it is to come back: it stays
        return trainer.result()

    expected = seeded(whole)
    with vtensor.enabled(peak // 2 * PAGE, **settings, plan=path, link="1GB/s"):
        got = seeded(whole)
        stats = vtensor.memory_stats()
    assert same(got, expected)
    assert stats["planned_iterations"] >= 5, stats
    # Gradients and states have the sizes of their weights; from the third iteration on all are told apart.
    # On a busy machine some iterations begin one or two fewer (the same bytes come in); none begins more.
    assert max(after - before for before, after in itertools.pairwise(arrived[3:])) == plan.prediction.in_chunks


def test_plans_that_do_not_fit_are_refused(trace: Path, tmp_path: Path) -> None:
    plan = lgm.analyze(lgm.load_trace(trace), lgm.Device(200, 1e9, 1e9))
    path = tmp_path / "plan.npz"
    lgm.save_plan(plan, path)
    for options, words in (
        ({"budget": 199 * PAGE, "chunk": PAGE}, "was made for a budget"),
        ({"budget": 1 << 28, "chunk": 2 * PAGE}, "was made for chunks"),
        ({"budget": 1 << 28, "chunk": PAGE, "policy": "lru"}, "contradict"),
    ):
        with pytest.raises(vtensor.ConfigError, match=words):
            vtensor.enable(plan=path, **options)
        assert not vtensor.is_enabled()
    tight = lgm.Device(analyze_lifetimes(plan.trace).peak * 9 // 10, 1e9, 1e9)
    for made, asked, words in (
        ("never", "only", "copies, and recompute='only' copies nothing"),
        ("only", "never", "makes things again, and recompute='never' does not"),
    ):
        lgm.save_plan(lgm.analyze(plan.trace, tight, recompute=made), path)
        with pytest.raises(vtensor.ConfigError, match=words):
            vtensor.enable(tight.budget_chunks * PAGE, chunk=PAGE, recompute=asked, plan=path)
    with pytest.raises(vtensor.ConfigError, match="not a plan"):
        vtensor.enable(1 << 28, chunk=PAGE, plan=trace)


def test_chunks_are_as_large_as_the_plan_says(trace: Path, tmp_path: Path) -> None:
    lgm.save_plan(lgm.analyze(lgm.load_trace(trace), lgm.Device(200, 1e9, 1e9)), tmp_path / "plan.npz")
    with vtensor.enabled("4GiB", device="cpu", plan=tmp_path / "plan.npz"):
        assert vtensor.memory_stats()["chunk_bytes"] == PAGE


def test_a_plan_that_cannot_be_installed_leaves_nothing_behind(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan.npz"
    lgm.save_plan(lgm.analyze(lgm.load_trace(trace), lgm.Device(200, 1e9, 1e9)), path)

    def refuse(*_given: Any) -> None:
        raise RuntimeError("refused")

    monkeypatch.setattr("vtensor.planning.current_planner.install", refuse)
    with pytest.raises(RuntimeError, match="refused"):
        vtensor.enable(200 * PAGE, chunk=PAGE, plan=path)
    assert not vtensor.is_enabled()
    monkeypatch.undo()
    with vtensor.enabled(200 * PAGE, chunk=PAGE, plan=path):
        assert vtensor.is_enabled()


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
    monkeypatch.setitem(globals(), "wait_for_plan", lambda: None)
    with vtensor.enabled(320 << 10, chunk=PAGE, min_size=1):
        trainer = Trainer()
        for _ in range(6):
            trainer.step()
        assert "no plan: the first is still being made" in vtensor.memory_summary()
        wait.set()


def test_nothing_recorded_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(vtensor.NotEnabledError):
        vtensor.save_trace(tmp_path / "t.npz")
    with vtensor.enabled(1 << 28), pytest.raises(RuntimeError, match=r"call vtensor\.record"):
        vtensor.save_trace(tmp_path / "t.npz")
    vtensor.step()  # not enabled: does nothing


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
