"""What an optimizer keeps lies side by side: the same bits, and nothing moves that somebody may point at."""

from __future__ import annotations

import copy
import doctest
import gc
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import vtensor
from vtensor import native
from vtensor.session import shelves
from vtensor.session.shelves import runs
from vtensor.settings.config import make_config
from vtensor.settings.options import Options

from ..identity import check_identity, leaves, same, seeded

PAGE = 4096
WIDTH = 48  # 48 x 48 floats are 2.25 pages


def network(layers: int = 24) -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Tanh()) for _ in range(layers)))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, first: int = 0) -> list[torch.Tensor]:
    losses = []
    for step in range(first, first + steps):
        data = torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def address(tensor: torch.Tensor) -> int:
    return torch._C.TensorBase.data_ptr(tensor)  # as nobody else asks: it is no door


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3, amsgrad=True),
    "adamw_foreach": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=True),
    "adam_fused": lambda p: torch.optim.Adam(p, lr=1e-3, fused=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
}


@pytest.mark.parametrize(
    ("name", "policy"), [*((name, "plan") for name in OPTIMIZERS), ("adamw", "lru"), ("adamw", "delta")]
)
def test_the_same_bits(name: str, policy: str) -> None:
    def program() -> Any:
        model = network()
        optimizer = OPTIMIZERS[name](model.parameters())
        return train(model, optimizer, 6), model.state_dict(), optimizer.state_dict()

    check_identity(program, (0.6, 0.35), policy=policy)


def test_the_same_bits_on_an_ordered_device(late: bool) -> None:
    def program() -> Any:
        model = network()
        optimizer = OPTIMIZERS["adamw_foreach"](model.parameters())
        losses = train(model, optimizer, 6)
        if vtensor.is_enabled() and native.load().pressed():
            assert native.load().parts.shelves() > 0
        return losses, model.state_dict(), optimizer.state_dict()

    check_identity(program, (0.6, 0.4), overdraw=not late)


def test_less_memory_is_wanted() -> None:
    wanted = {}
    for budget in ("8MiB", "900KiB"):
        with vtensor.enabled(budget, chunk=PAGE, min_size=1024):
            torch.manual_seed(0)
            model = network(32)
            optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
            train(model, optimizer, 3)
            optimizer.zero_grad()
            gc.collect()
            wanted[budget] = vtensor.memory_stats()["wanted_bytes.current"]
            exact = sum(
                t.nbytes for t in leaves([list(model.parameters()), optimizer.state_dict()["state"]]) if t.numel() > 1
            )
            assert native.load().validate() == ""
    assert wanted["8MiB"] > 1.2 * exact  # with room to spare nothing is moved
    assert wanted["900KiB"] < 1.07 * exact


def test_training_goes_on_after_the_session() -> None:
    torch.manual_seed(0)
    model = network()
    expected = train(model, torch.optim.Adam(model.parameters()), 8)
    vtensor.enable("600KiB", chunk=PAGE, min_size=1, device="cpu")
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    losses = train(model, optimizer, 4)
    assert native.load().parts.shelves() > 0
    vtensor.disable()
    assert same(losses + train(model, optimizer, 4, first=4), expected)


def test_a_shelf_is_freed_with_the_last_on_it() -> None:
    with vtensor.enabled("600KiB", chunk=PAGE, min_size=1):
        before = vtensor.memory_stats()["wanted_bytes.current"]
        model = network()
        optimizer = torch.optim.AdamW(model.parameters())
        train(model, optimizer, 2)
        core = native.load()
        count = core.parts.shelves()
        assert count > 0
        kept = next(model.parameters())
        value = kept.detach().clone()
        del model, optimizer
        gc.collect()
        assert core.parts.shelves() == 1
        core.parts.evict_all()
        assert torch.equal(kept, value)
        del kept, value
        gc.collect()
        assert core.parts.shelves() == 0
        assert vtensor.memory_stats()["wanted_bytes.current"] == before
        assert core.validate() == ""


def test_what_somebody_may_point_at_stays_where_it_is() -> None:
    with vtensor.enabled("600KiB", chunk=PAGE, min_size=1):
        model = network()
        parameters = list(model.parameters())
        optimizer = torch.optim.AdamW(parameters)
        array = parameters[3].detach().numpy()
        pointer = parameters[5].data_ptr()
        capsule = torch.from_dlpack(torch.utils.dlpack.to_dlpack(parameters[7].detach()))
        alias = parameters[9].detach()
        half = nn.Parameter(torch.randn(2, WIDTH, WIDTH)[1])  # its storage is larger than it
        optimizer.add_param_group({"params": [half]})
        half.grad = torch.ones_like(half)
        where = [address(p) for p in parameters]
        train(model, optimizer, 2)
        moved = [address(p) != was for p, was in zip(parameters, where, strict=True)]
        assert [i for i in range(10) if not moved[i]] == [3, 5, 7, 9]
        assert sum(moved) > 12
        with torch.no_grad():
            for parameter in parameters:
                parameter.fill_(3)
        assert (array == 3).all() and (capsule == 3).all() and (alias == 3).all()
        assert parameters[5].data_ptr() == pointer


def test_ties_copies_and_checkpoints() -> None:
    def program() -> Any:
        model = network()
        model[5][0].weight = model[2][0].weight
        optimizer = torch.optim.AdamW(model.parameters())
        losses = train(model, optimizer, 3)
        saved = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
        other = copy.deepcopy(model)
        losses += train(model, optimizer, 2)
        assert model[5][0].weight is model[2][0].weight
        model.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
        losses += train(model, optimizer, 3)
        return losses, model.state_dict(), optimizer.state_dict(), other.state_dict()

    check_identity(program, (0.6, 0.35))


def test_where_they_are_is_said_of_each_tensor() -> None:
    with vtensor.enabled("600KiB", chunk=PAGE, min_size=1):
        model = network()
        train(model, torch.optim.AdamW(model.parameters()), 2)
        on_shelf = [p for p in model.parameters() if address(p) % PAGE != 0]
        assert on_shelf
        for parameter in on_shelf:
            pieces = vtensor.split(parameter)
            assert sum(piece.nbytes for piece in pieces) == parameter.nbytes
            assert pieces[0].address == address(parameter)
            assert 3 <= vtensor.residency(parameter).chunks <= 4
            vtensor.merge(parameter)
            assert vtensor.residency(parameter).absent == 0


def test_a_plan_from_a_file_knows_tensors_by_their_sizes(tmp_path: Any) -> None:
    def program() -> Any:
        model = network()
        optimizer = torch.optim.AdamW(model.parameters())
        return train(model, optimizer, 5), model.state_dict()

    with vtensor.enabled("64MiB", chunk=PAGE, min_size=1):
        vtensor.record()
        expected = seeded(program)
        trace = vtensor.save_trace(tmp_path / "trace.npz")
    assert trace.meta["shelves"] == 0
    import lgm

    plan = lgm.analyze(trace, lgm.Device(150, 1e9, 1e9, **lgm.records.HOST_COSTS))
    lgm.save_plan(plan, tmp_path / "plan.npz")
    with vtensor.enabled(150 * PAGE, chunk=PAGE, min_size=1, plan=tmp_path / "plan.npz"):
        assert same(seeded(program), expected)
        assert native.load().pressed()
        assert native.load().parts.shelves() == 0
        assert vtensor.memory_stats()["planned_iterations"] >= 3


@given(st.lists(st.integers(1, 40_000), max_size=40), st.integers(1, 16))
def test_runs(sizes: list[int], limit: int) -> None:
    found = runs(sizes, PAGE, limit)
    stop = 0
    for run in found:
        assert run.start >= stop and run.stop > run.start
        stop = run.stop
        chunks = -(-sum(-(-size // 512) * 512 for size in sizes[run]) // PAGE)
        assert chunks <= limit
        assert chunks < sum(-(-size // PAGE) for size in sizes[run])
    assert stop <= len(sizes)


def test_nothing_moves_while_other_threads_work() -> None:
    go, stop = threading.Event(), threading.Event()

    def evaluate() -> None:
        total = torch.ones(WIDTH, WIDTH) @ torch.ones(WIDTH, WIDTH)
        go.set()
        stop.wait(60)
        assert total[0, 0] == WIDTH

    with vtensor.enabled("600KiB", chunk=PAGE, min_size=1):
        other = threading.Thread(target=evaluate)
        other.start()
        go.wait(60)
        first, second = network(), network()
        train(first, torch.optim.AdamW(first.parameters()), 2)
        assert native.load().pressed()
        assert native.load().parts.shelves() == 0
        stop.set()
        other.join()
        train(second, torch.optim.AdamW(second.parameters()), 2)
        assert native.load().parts.shelves() > 0


def test_threads_of_an_earlier_session_keep_nothing_where_it_is() -> None:
    go, stop = threading.Event(), threading.Event()

    def lives_on() -> None:
        torch.ones(WIDTH, WIDTH) @ torch.ones(WIDTH, WIDTH)
        go.set()
        stop.wait(60)

    other = threading.Thread(target=lives_on)
    with vtensor.enabled("600KiB", chunk=PAGE, min_size=1):
        other.start()
        go.wait(60)
    try:
        with vtensor.enabled("600KiB", chunk=PAGE, min_size=1):
            model = network()
            train(model, torch.optim.AdamW(model.parameters()), 2)
            assert native.load().parts.shelves() > 0
    finally:
        stop.set()
        other.join()


def test_what_the_step_did_not_write_stays() -> None:
    with vtensor.enabled("600KiB", chunk=PAGE, min_size=1):
        model = network()
        frozen = [layer[0].weight.requires_grad_(False) for layer in list(model)[:8]]
        where = [address(p) for p in frozen]
        train(model, torch.optim.AdamW(model.parameters()), 2)
        assert native.load().parts.shelves() > 0
        assert [address(p) for p in frozen] == where


def test_a_budget_that_gets_smaller_counts_as_it_is() -> None:
    vtensor.enable("64MiB", chunk=PAGE, min_size=1, device="cpu")
    vtensor.enable("600KiB")
    model = network()
    train(model, torch.optim.AdamW(model.parameters()), 2)
    assert native.load().parts.shelves() > 0


def test_plans_are_forgotten_even_if_not_all_could_be_moved() -> None:
    moved, forgotten = [], []

    class Module:
        pressed = may_move = staticmethod(lambda *_: True)

        @staticmethod
        def put_on_shelf(tensors: list[int]) -> None:
            if len(moved) == 2:
                raise torch.OutOfMemoryError
            moved.append(tensors)

    planner = SimpleNamespace(
        config=make_config("600KiB", Options(device="cpu", chunk=PAGE, min_size=1)),
        shelves=0, maker=SimpleNamespace(forget=lambda: forgotten.append(True)),
    )  # fmt: skip
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    train(model, optimizer, 1)
    looks: Any = shelves.Shelves(cast("Any", Module), cast("Any", planner), keep_plans=False)
    with pytest.raises(torch.OutOfMemoryError):
        looks.look(optimizer)
    assert planner.shelves == len(moved) == 2 and forgotten


def test_the_example_in_the_docstring() -> None:
    assert doctest.testmod(shelves) == (0, 1)


def test_subclasses_of_tensors_are_asked_nothing() -> None:
    class Shy(nn.Parameter):
        asked = False

        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if getattr(func, "__self__", None) is torch.Tensor.nbytes and cls.asked:
                raise AssertionError("its bytes are nobody's business")
            return super().__torch_function__(func, types, args, kwargs or {})

    with vtensor.enabled("600KiB", chunk=PAGE, min_size=1):
        model = network()
        for layer in model:
            layer[0].weight = Shy(layer[0].weight.detach().clone())
        Shy.asked = True
        train(model, torch.optim.AdamW(model.parameters()), 3)
        assert native.load().pressed() and native.load().validate() == ""
