"""What was dropped is recomputed, bit for bit: torch's own operators, and what programs do around it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import lgm
import vtensor
from lgm.checkpoints.segments import best_checkpoints, checkpoints_at, every_root
from vtensor import native, planning

from ..identity import PAGE, check_identity, check_same, same, seeded
from .test_operators import BUDGET, CHUNK, cases, run
from .test_programs import MODELS, OPTIMIZERS, training

SETTINGS: dict[str, Any] = {"chunk": CHUNK, "min_size": 1, "host": "64MiB", "policy": "lru"}


def dropping() -> Callable[[], None]:
    """A function that drops all that can be recomputed; the rest leaves by a copy."""
    core = native.load()

    def drop_everything() -> None:
        core.parts.drop_all()
        core.parts.evict_all()

    return drop_everything


def check(samples: int, *, every_way: bool, autocast: bool = False) -> None:
    core, drop_everything = native.load(), dropping()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = cases(samples, every_way, autocast)
        with vtensor.enabled(BUDGET * CHUNK, **SETTINGS):
            core.observe()
            core.see("all")
            wrong = [
                case.name for case in found if not same(run(case.call, case.given, drop_everything), case.expected)
            ]
            assert core.validate() == ""
            stats = vtensor.memory_stats()
            assert stats["drops"] > len(found)
            assert stats["made_bytes"] > 0
    assert wrong == []


@pytest.mark.parametrize("autocast", [False, pytest.param(True, marks=pytest.mark.long)], ids=["as it is", "autocast"])
def test_every_operator_is_made_again(autocast: bool) -> None:
    check(samples=1, every_way=False, autocast=autocast)


@pytest.mark.parametrize("late", [False], indirect=True)
def test_every_operator_is_made_again_on_an_ordered_device(late: bool) -> None:
    check(samples=1, every_way=False)


# Why operators are never run again; a few hundred others are.
REASONS = {
    "it draws random numbers from a generator that it cannot be given",
    "two runs may differ",
    "it writes several tensors",
    "its result is memory to be filled, which may happen unseen",
    "it changes the memory of its argument, or goes by places in it",
    "what it makes is sparse, or in a library's own layout",
    "not one of torch's own operators, or not with its own kernels",
    "an argument is no plain tensor or number, or not managed and large",
}


# Verifying compares whole allocations, and these leave bytes unwritten that no tensor shows (unique_consecutive cuts
# its result from a larger one). What tensors show is compared where everything is dropped, above.
UNSHOWN = {"aten::_embedding_bag", "aten::col2im", "aten::mse_loss", "aten::smooth_l1_loss", "aten::unique_consecutive"}


def check_verified(samples: int, *, every_way: bool) -> None:
    core = native.load()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = cases(samples, every_way)
        with vtensor.enabled(BUDGET * CHUNK, **SETTINGS):
            core.observe()
            core.see("all", verify=True)
            for case in found:
                run(case.call, case.given, lambda: None)
            assert vtensor.memory_stats()["drops"] == 0
    verified = core.verified()
    assert [name for name, _, different, _, _ in verified if different > 0 and name not in UNSHOWN] == []
    assert sum(alike > 0 for _, alike, _, _, _ in verified) > 450
    never = {name: why for name, alike, _, _, why in verified if alike == 0 and why}
    print(f"{len(verified)} operators, never run again: {never}")
    assert set(never.values()) <= REASONS
    others = [name for name, why in never.items() if "random numbers" not in why and "_foreach" not in name]
    assert len(others) < 40
    drawn = {"aten::bernoulli_", "aten::uniform_", "aten::normal_", "aten::multinomial", "aten::rand"}
    assert drawn & never.keys() == {"aten::rand"}


def test_verifying_begins_with_the_first_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    """That which first needs the budget is made of others, of which each was taken for all that is done."""
    monkeypatch.setenv("VTENSOR_VERIFY", "replay")
    arguments = torch.randn(128), torch.randn(64, 16), torch.randn(16, 128)
    before = {name: different for name, _, different, _, _ in native.load().verified()}
    with vtensor.enabled(10 * CHUNK, **SETTINGS):
        torch.addmm(*arguments).mul_(2)
    verified = {name: (alike, different) for name, alike, different, _, _ in native.load().verified()}
    assert verified["aten::mul_"][0] > 0 and verified["aten::mul_"][1] == before.get("aten::mul_", 0)


@pytest.mark.parametrize("change", ["t_", "unsqueeze_", "squeeze_", "transpose_", "detach_", "detach"])
def test_what_is_only_seen_otherwise_is_still_what_was_made(change: str) -> None:
    """``unsqueeze_`` and the like write nothing: what is known of their argument holds afterwards."""
    arguments = {"t_": (), "unsqueeze_": (0,), "squeeze_": (0,), "transpose_": (0, 1)}.get(change, ())
    x = torch.randn(64, 256)
    expected = getattr(torch.tanh(x), change)(*arguments)
    core = native.load()
    with vtensor.enabled(64 * CHUNK, **SETTINGS):
        core.observe()
        core.see("all")
        torch.relu(x)
        y = getattr(torch.tanh(x), change)(*arguments)
        core.parts.drop_all()
        assert vtensor.residency(y).dropped == 16
        assert torch.equal(y, expected)


def test_every_operator_verified() -> None:
    check_verified(samples=1, every_way=False)


@pytest.mark.long
def test_every_sample_of_every_operator_verified() -> None:
    check_verified(samples=1000, every_way=True)


@pytest.mark.long
def test_every_operator_in_every_way_is_made_again() -> None:
    check(samples=8, every_way=True)


@contextlib.contextmanager
def all_dropped_all_the_time() -> Iterator[None]:
    """Whatever can be recomputed is dropped by another thread, again and again: but the program gets as much time as
    making things again took, or a slow machine would do nothing but make the same things again."""
    core, over = native.load(), threading.Event()

    def drop() -> None:
        begun, made = time.perf_counter(), vtensor.memory_stats()["make_seconds"]
        while not over.wait(0.0005):
            if time.perf_counter() - begun >= 2 * (vtensor.memory_stats()["make_seconds"] - made):
                core.parts.drop_all()

    thread = threading.Thread(target=drop)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def with_checkpoints() -> Any:
    torch.manual_seed(0)
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1)) for _ in range(4))
    optimizer = torch.optim.AdamW(blocks.parameters(), lr=1e-3)
    for _ in range(6):
        x = torch.randn(32, 64, requires_grad=True)
        for block in blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        x.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        planning.wait_for_plan()
    return list(blocks.parameters()), torch.get_rng_state()


def twice_backward() -> Any:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(inplace=True), nn.BatchNorm2d(8), nn.Tanh()).to(
        memory_format=torch.channels_last
    )
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1, momentum=0.9)
    for _ in range(6):
        x = torch.randn(4, 3, 16, 16).contiguous(memory_format=torch.channels_last).requires_grad_()
        out = layers(x).square().mean()
        (slope,) = torch.autograd.grad(out, x, create_graph=True)
        (out + slope.square().sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
        planning.wait_for_plan()
    return list(layers.parameters()), list(layers.buffers()), optimizer.state_dict(), torch.get_rng_state()


PROGRAMS: dict[str, Callable[[], Any]] = {
    **{name: functools.partial(training, MODELS[name], OPTIMIZERS["adamw"]) for name in MODELS},
    "bf16": functools.partial(training, MODELS["gpt2"], OPTIMIZERS["adamw_fused"], autocast=True),
    "accumulating": functools.partial(training, MODELS["bert"], OPTIMIZERS["sgd_foreach"], accumulate=2, clip=1.0),
    "checkpoints": with_checkpoints,
    "double backward": twice_backward,
}


SOME = [
    pytest.param(name, marks=[pytest.mark.long] if name in ("bert", "gpt2", "accumulating") else [])
    for name in PROGRAMS
]


@pytest.mark.parametrize("name", SOME)
def test_training_while_everything_is_dropped(name: str) -> None:
    expected, core = seeded(PROGRAMS[name]), native.load()
    with vtensor.enabled("64MiB", **SETTINGS):
        core.observe()
        core.see("all")
        with all_dropped_all_the_time():
            got = seeded(PROGRAMS[name])
        stats = vtensor.memory_stats()
        assert core.validate() == ""
    check_same(got, expected, PROGRAMS[name], "while everything was dropped")
    assert stats["made_bytes"] > 0


@pytest.mark.parametrize("name", SOME)
def test_training_by_plans_that_make_things_again(name: str) -> None:
    runs = check_identity(PROGRAMS[name], (0.6, 0.4), recompute="auto", link="20MB/s")
    if name != "checkpoints":  # whose steps are all different, with or without this
        assert all(run["planned_iterations"] > 0 for run in runs)


def net_with_dropout() -> Any:
    torch.manual_seed(0)
    net = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.3)) for _ in range(6)])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(7):
        net(torch.randn(256, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        planning.wait_for_plan()
    return list(net.parameters()), torch.get_rng_state()


def test_random_numbers_are_drawn_again() -> None:
    (run,) = check_identity(net_with_dropout, (0.5,), min_size=PAGE, recompute="auto", link="8MB/s")
    assert run["planned_iterations"] >= 2
    (without,) = check_identity(net_with_dropout, (0.5,), min_size=PAGE, recompute="never", link="8MB/s")
    assert run["moved_out_bytes"] < without["moved_out_bytes"]


def test_plans_draw_random_numbers_again(tmp_path: Path) -> None:
    with vtensor.enabled("64MiB", chunk=PAGE, min_size=PAGE):
        vtensor.record()
        net_with_dropout()
        trace = vtensor.save_trace(tmp_path / "trace.npz")
    trace = dataclasses.replace(trace, op_ns=np.full(trace.operations, 100_000))  # whatever else the machine did
    peak = int(lgm.iteration.analyze_lifetimes(trace).peak)
    plan = lgm.analyze(trace, lgm.Device(peak // 2, 1e6, 1e6), recompute="auto")
    assert "aten::bernoulli_.float (again)" in plan.trace.names


def test_a_trace_of_a_planned_iteration_knows_what_could_be_made_again(tmp_path: Path) -> None:
    """While a plan is followed only what it recomputes is seen."""
    with vtensor.enabled(300 * PAGE, chunk=PAGE, min_size=PAGE, link="8MB/s"):
        net_with_dropout()
        assert vtensor.memory_stats()["planned_iterations"]
        plan, trace = planning.newest_plan(), vtensor.save_trace(tmp_path / "trace.npz")
    assert plan is not None
    assert np.array_equal(trace.call_again, plan.recorded.call_again)
    assert trace.call_again.any()


def test_what_is_made_to_be_filled_is_never_made_again() -> None:
    """That may happen unseen; and these ask what they are given for its sizes only, which need not be there."""
    core = native.load()
    with vtensor.enabled("64MiB", chunk=PAGE, min_size=PAGE, recompute="only"):
        core.observe()
        core.see("all")
        x = torch.randn(1 << 14)
        filled = [
            torch.zeros_like(x), torch.ones_like(x), torch.full_like(x, 3.0), torch.rand_like(x),
            x.new_zeros(x.shape), x.new_ones(x.shape), x.new_full(x.shape, 3.0), torch.relu(x),
        ]  # fmt: skip
        core.parts.drop_all()
        assert [vtensor.residency(t).dropped > 0 for t in filled] == [False] * 7 + [True]


def test_what_lives_on_for_what_was_dropped_is_not_the_programs(tmp_path: Path) -> None:
    """A plan would count with it for good, and look for it in later iterations."""
    core = native.load()
    with vtensor.enabled("64MiB", chunk=PAGE, min_size=PAGE, recompute="only"):
        core.observe()
        core.see("all")
        a = torch.rand(64, 1024)
        b, expected = a + 1, (a + 1).numpy().copy()
        core.parts.drop_all()
        assert vtensor.residency(b).dropped > 0
        vtensor.record()
        vtensor.step()
        del a
        vtensor.step()  # b is alone now
        c = torch.zeros(64, 1024) + 1
        vtensor.step()
        trace = vtensor.save_trace(tmp_path / "trace.npz")
        assert np.count_nonzero(trace.tensor_born < 0) == 1
        assert np.array_equal(b.numpy(), expected)
        del c


def test_random_numbers_that_two_threads_draw_at_once() -> None:
    """Whose generator had which state nobody can say: what was made of such numbers is not recomputed."""
    core, drop_everything, over = native.load(), dropping(), threading.Event()

    def draw() -> None:
        while not over.is_set():
            torch.rand(100_000)

    other = threading.Thread(target=draw)
    x, wrong = torch.ones(100_000), 0
    with vtensor.enabled("64MiB", **SETTINGS):
        core.observe()
        core.see("all")
        other.start()
        for _ in range(30):
            noise = torch.empty_like(x).bernoulli_(0.5)
            before = bytes(memoryview(noise.mul(1).numpy()).cast("B"))
            drop_everything()
            wrong += before != bytes(memoryview(noise.mul(1).numpy()).cast("B"))
        over.set()
        other.join()
    assert wrong == 0


@pytest.mark.parametrize("late", [False], indirect=True)
def test_verifying_loses_nothing_of_the_operation_that_it_interrupts(
    late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VTENSOR_VERIFY", "replay")
    core, (numbers, more) = native.load(), seeded(lambda: (torch.rand(1024), torch.rand(1024)))
    with vtensor.enabled(16 * PAGE, **SETTINGS):
        core.observe()
        x = numbers.clone()
        made, (p, q) = x * 2, seeded(lambda: (torch.rand(1024), torch.rand(1024)))
        for used in (made, p, q):
            used.sum()
        core.parts.evict_all()
        held = [torch.full((1024,), float(i)) for i in range(40)]
        core.parts.drop_all()  # put aside, and compared before the next operation, whose arguments are away
        total = p + q
        compared = [one for one in core.verified() if one[0] == "(when it would have been dropped)"]
    assert torch.equal(total, numbers + more)
    assert compared and len(held) == 40


# --- where no plan says so ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SOME)
def test_training_without_copies(name: str) -> None:
    runs = check_identity(PROGRAMS[name], (0.7, 0.5), min_size=PAGE, recompute="only")
    assert all(run["moved_out_bytes"] == 0 for run in runs)
    assert all(run["drops"] > 0 for run in runs)


@pytest.mark.parametrize("name", ["resnet", "checkpoints", "double backward"])
def test_training_without_copies_on_an_ordered_device(name: str, late: bool) -> None:
    (run,) = check_identity(PROGRAMS[name], (0.5,), min_size=PAGE, recompute="only", overdraw=not late)
    assert run["moved_out_bytes"] == 0
    assert run["drops"] > 0


@pytest.mark.parametrize("name", SOME)
def test_training_by_what_costs_less(name: str) -> None:
    (run,) = check_identity(PROGRAMS[name], (0.4,), min_size=PAGE, policy="delta", link="20MB/s")
    assert run["drops"] > 0
    assert run["moved_out_bytes"] > 0  # weights, for one, cannot be recomputed


@pytest.mark.parametrize("settings", [{"recompute": "only"}, {"policy": "delta"}], ids=["only", "delta"])
def test_while_verifying_what_would_be_dropped_is_copied(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VTENSOR_VERIFY", "replay")
    (run,) = check_identity(PROGRAMS["double backward"], (0.5,), min_size=PAGE, **settings)
    assert run["drops"] == 0
    assert run["moved_out_bytes"] > 0


def test_what_leaves_without_a_plan_is_cheap_to_make_again() -> None:
    """Of two tensors the one that took less leaves, though the other is older and as large."""
    with vtensor.enabled("64MiB", chunk=PAGE, min_size=1 << 20, recompute="only", policy="lru"):
        a, b = torch.rand(1024, 1024), torch.rand(1024, 1024)  # which cannot be recomputed
        dear, cheap = a @ b, a + b
        vtensor.enable("15MiB")
        assert vtensor.residency(cheap).dropped > 0
        assert vtensor.residency(dear).dropped == 0
        assert (cheap == a + b).all()
        assert "of what was used in place" in vtensor.memory_summary()  # and nothing of copies that are hidden


def test_what_takes_ever_longer_to_make_again_is_used_in_place_in_the_end() -> None:
    """Updated in place, a weight is made of all that it was; and there is room for three of eight."""
    with vtensor.enabled("1536KiB", chunk=PAGE, min_size=PAGE, recompute="only", policy="lru"):
        weights = [torch.empty(1 << 17).uniform_() for _ in range(8)]  # 4 MiB
        drops = []
        for _ in range(12):
            for weight in weights:
                weight.add_(torch.tanh(weight), alpha=-0.1)
            vtensor.step()
            drops.append(vtensor.memory_stats()["drops"] - sum(drops))
        held = vtensor.memory_stats()["borrowed_bytes.peak"]
    assert drops[1] > 0
    assert drops[-1] == 0 and held > 0


@pytest.mark.parametrize(("policy", "recompute", "budget"), [("delta", "auto", 4_915_200), ("lru", "only", 9 << 20)])
def test_weights_that_are_new_tensors_are_not_made_of_all_steps_before(
    policy: Any, recompute: Any, budget: int
) -> None:
    """Each step's are cheap to make of those before and of gradients, which are freed when the new ones have left."""

    def program() -> Any:
        torch.manual_seed(0)
        net = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.GELU(), nn.Dropout(0.1))))
        weights = {name: value.detach().clone().requires_grad_() for name, value in net.named_parameters()}
        for step in range(8):
            drawn = torch.Generator().manual_seed(step)
            x, y = (torch.randn(256, 256, generator=drawn) for _ in range(2))
            loss = nn.functional.mse_loss(torch.func.functional_call(net, weights, (x,)), y)
            slopes = torch.autograd.grad(loss, list(weights.values()))
            weights = {
                name: (value - 0.1 * slope).detach().requires_grad_()
                for (name, value), slope in zip(weights.items(), slopes, strict=True)
            }
        return list(weights.values())

    plain = program()
    with vtensor.enabled(budget, chunk="64KiB", min_size="16KiB", device="cpu", policy=policy, recompute=recompute):
        assert same(plain, program())
        stats = vtensor.memory_stats()
    assert stats["drops"] > 0
    assert stats["oversize"] < 50  # makings so deep have no room: 7,000 and more


def test_what_cannot_be_made_again_is_said_to_fill_the_budget() -> None:
    with vtensor.enabled("1MiB", chunk=PAGE, min_size=1, recompute="only", oversize="raise"):
        kept = [torch.rand(1 << 16) for _ in range(3)]
        with pytest.raises(torch.OutOfMemoryError, match="what is left cannot be recomputed"):
            kept += [torch.rand(1 << 16) for _ in range(3)]


def test_the_best_checkpoints_are_no_worse_than_a_rule_of_thumb(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(512, 512), nn.GELU())))
    optimizer = torch.optim.AdamW(net.parameters())
    with vtensor.enabled("64MiB", chunk=PAGE, min_size=PAGE, device="cpu"):
        vtensor.record()
        for _ in range(3):
            net(torch.randn(1024, 512)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        vtensor.save_trace(tmp_path / "t.npz")
    trace = lgm.load_trace(tmp_path / "t.npz")
    best = best_checkpoints(trace)
    rule = checkpoints_at(trace, best.chain, every_root(best.chain))
    assert best.plan.prediction.peak_chunks <= rule.plan.prediction.peak_chunks


def train_convolutions(rows: Iterable[int]) -> Any:
    torch.manual_seed(0)
    layers = []
    for _ in range(6):
        layers += [nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True)]
    net = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    for each in rows:
        net(torch.randn(each, 8, 24, 24)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        planning.wait_for_plan()
    return list(net.parameters()), list(net.buffers())


def test_plans_of_other_sizes_make_again_too() -> None:
    """What could be run again is not noted while a plan is followed, unless another one is wanted."""
    plans = []

    def program() -> Any:
        result = train_convolutions([8] * 8 + [6] * 8)
        if vtensor.is_enabled():
            plans.append(planning.newest_plan())
        return result

    (run,) = check_identity(program, (0.5,), min_size=PAGE, recompute="auto", link="20MB/s")
    assert run["plans"] == 2
    newest = plans[-1]
    assert newest is not None
    assert newest.remaking is not None
    assert 6 * 8 * 24 * 24 * 4 in newest.trace.tensor_bytes


def test_a_plan_makes_again_what_the_link_could_not_carry() -> None:
    def program() -> Any:
        return train_convolutions([8] * 7)

    (run,) = check_identity(program, (0.5,), min_size=PAGE, recompute="auto", link="20MB/s")
    assert run["planned_iterations"] >= 2
    assert run["drops"] > 0
    assert run["made_bytes"] > 0
    (without,) = check_identity(program, (0.5,), min_size=PAGE, recompute="never", link="20MB/s")
    assert run["moved_out_bytes"] < without["moved_out_bytes"]
