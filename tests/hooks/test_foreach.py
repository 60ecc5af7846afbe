"""Multi-tensor operations cut into lists that fit: the same bits, and no borrowing."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch.overrides import TorchFunctionMode

import vtensor
from vtensor.hooks.foreach import _cutting, cut

from ..identity import check_identity

PAGE = 4096


@given(sizes=st.lists(st.integers(0, 50), max_size=30), limit=st.integers(1, 60))
def test_cut(sizes: list[int], limit: int) -> None:
    slices = cut(sizes, limit)
    joined = [size for part in slices for size in sizes[part]]
    assert joined == sizes
    for part in slices:
        assert sum(sizes[part]) <= limit or part.stop - part.start == 1


@pytest.mark.parametrize("maker", [torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD, torch.optim.Adagrad])
@pytest.mark.parametrize("how", ["foreach", "fused"])
def test_lists_larger_than_the_budget(maker: Any, how: str) -> None:
    def program() -> Any:
        parameters = [torch.nn.Parameter(torch.randn(1024 * (1 + i % 3))) for i in range(24)]
        extra = {"momentum": 0.9} if maker is torch.optim.SGD else {}
        optimizer = maker(parameters, lr=0.01, **{how: True}, **extra)
        norms = []
        for _ in range(3):
            for p in parameters:
                p.grad = p.detach().cos()
            norms.append(torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True))
            optimizer.step()
        return parameters, norms, optimizer.state_dict()["state"]

    (run,) = check_identity(program, (0.25,))
    assert run["oversize"] == 0, "cut lists need no borrowing"


@pytest.mark.parametrize(("name", "parts"), [("_foreach_norm", 1), ("_foreach_abs_", 1), ("_foreach_abs", 2)])
def test_lists_are_cut_by_what_is_used(name: str, parts: int) -> None:
    """Norms make numbers, and what writes in place makes nothing: cut in more parts they would be other operations."""
    calls = []

    def counted(values: list[torch.Tensor]) -> Any:
        calls.append(len(values))
        return getattr(torch, name)(values)

    counted.__name__ = name
    results = _cutting(counted, SimpleNamespace(fits=lambda: False), lambda: 4 * PAGE)([torch.ones(PAGE // 4)] * 4)
    assert calls == [4 // parts] * parts
    assert results is None or len(results) == 4


def test_every_kind_of_result_is_put_together_again() -> None:
    def program() -> Any:
        xs = [torch.randn(PAGE) for _ in range(8)]
        ys = [torch.rand(PAGE) + 1 for _ in range(8)]
        return (
            torch._foreach_add(xs, ys, alpha=2),
            torch._foreach_mul(xs, list(range(8))),
            torch._foreach_norm(xs, 1),
            torch._foreach_addcdiv(xs, ys, ys, value=0.5),
            torch._foreach_addcmul(xs, ys, ys, [0.1 * i for i in range(8)]),
            torch._foreach_addcmul(xs, ys, ys, torch.arange(8.0)),
            torch._foreach_lerp(xs, ys, 0.3),
            torch._foreach_maximum(xs, 0.0),
            torch._foreach_max(xs),
            torch._foreach_copy_(xs, ys),
            torch._foreach_zero_(ys),
            xs,
            ys,
        )

    check_identity(program, (0.3,))


def test_who_looks_at_calls_sees_the_programs_only() -> None:
    class Calls(TorchFunctionMode):
        def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
            names.append(func.__name__)
            return func(*args, **(kwargs or {}))

    names: list[str] = []
    with vtensor.enabled(64 * PAGE, chunk=PAGE, min_size=1):
        xs = [torch.ones(8 * PAGE // 4) for _ in range(16)]
        with Calls():
            torch._foreach_add_(xs, 1.0)
    assert set(names) == {"_foreach_add_"} and len(names) > 1  # it was cut
    assert all((x == 2).all() for x in xs)


def test_names_are_put_back() -> None:
    before = torch._foreach_add_, torch._fused_adamw_, torch.Tensor.numpy, torch.Tensor.data_ptr
    vtensor.enable("64MiB")
    assert torch._foreach_add_ is not before[0]
    vtensor.disable()
    assert (torch._foreach_add_, torch._fused_adamw_, torch.Tensor.numpy, torch.Tensor.data_ptr) == before


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
def test_scripts_and_pickles_take_them_for_torchs_own() -> None:
    def scaled(x: torch.Tensor) -> list[torch.Tensor]:
        return torch._foreach_mul([x, x], 0.5)

    with vtensor.enabled("64MiB"):
        scripted = torch.jit.script(scaled)
        assert all((t == 0.5).all() for t in scripted(torch.ones(3)))
        assert pickle.loads(pickle.dumps(torch._foreach_add)) is torch._foreach_add
        assert pickle.loads(pickle.dumps(torch.Tensor.numpy)) is torch.Tensor.numpy


def added(values: list[torch.Tensor]) -> torch.Tensor:
    torch._foreach_add_(values, 1.0)
    return values[0] * 1


@pytest.mark.parametrize("looks_first", [False, True], ids=["within", "before"])
def test_whole_graphs_with_them_compile(looks_first: bool) -> None:
    """Within a session and after it, whether torch.compile first looks at torch's functions before or within one."""

    def compiled() -> list[float]:
        torch._dynamo.reset()
        run = torch.compile(added, backend="eager", fullgraph=True)
        return run([torch.ones(4), torch.ones(4)]).tolist()

    rules = pytest.importorskip("torch._dynamo.trace_rules")
    rules.get_torch_obj_rule_map.cache_clear()
    if looks_first:
        rules.get_torch_obj_rule_map()
    with vtensor.enabled("4MiB", chunk=PAGE, min_size=1):
        assert compiled() == [2.0] * 4
    assert compiled() == [2.0] * 4
