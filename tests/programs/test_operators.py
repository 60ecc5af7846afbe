"""Every operator of torch's own test database on an ordered device, forward and backward, its arguments absent.

Nothing faults there, as on a GPU: an operator whose arguments the observer does not see reads what somebody else left.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

import vtensor
from vtensor import native

from ..identity import leaves, mostly_beyond, same

CHUNK, BUDGET = 4096, 48
# What the late device, whose tensors are the processor's, cannot tell about a GPU.
LEFT_OUT = {
    "tensor_split": "reads its indices by their bare address: on a GPU they are the processor's",
    "nn.functional.ctc_loss": "the same with lengths",
    "grid_sampler_3d": "larger than the late device",
    "linalg.lstsq": "LAPACK's gelsy gives other last bits in one of five calls of plain torch",
}


Call = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    name: str
    call: Call  # of a function to call before arguments are read, and of the arguments
    given: tuple[Any, Any, Any]
    expected: list[Any]


def tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def forward_and_backward(operator: Any) -> Call:
    def call(between: Call, first: Any, *args: Any, **kwargs: Any) -> Any:
        between()
        outputs = tensors(operator(first, *args, **kwargs))
        wanted = [value for value in tensors((first, args, kwargs)) if value.requires_grad]
        roots = [value for value in outputs if value.requires_grad and value.layout == torch.strided]
        if not wanted or not roots:
            return outputs
        weights = [torch.full_like(value, 0.5) for value in roots]
        between()
        return outputs, torch.autograd.grad(roots, wanted, weights, allow_unused=True)

    return call


def in_place(operator: Any) -> Call:
    def call(between: Call, first: Any, *args: Any, **kwargs: Any) -> Any:
        between()
        with torch.no_grad():
            return operator.inplace_variant(first, *args, **kwargs)

    return call


def into(operator: Any) -> Call:
    """With ``out=``."""

    def call(between: Call, first: Any, *args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            out = tree_map(torch.zeros_like, operator(first, *args, **kwargs))
            between()
            operator(first, *args, **kwargs, out=out)
            return out

    return call


def under_autocast(call: Call) -> Call:
    """In bf16."""

    def cast(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return call(*args, **kwargs)

    return cast


def run(call: Call, given: tuple[Any, Any, Any], between: Callable[[], None]) -> list[Any]:
    """What it returns, and its arguments afterwards."""
    torch.manual_seed(0)

    def fresh(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            return value
        return value.detach().clone(memory_format=torch.preserve_format).requires_grad_(value.requires_grad)

    first, args, kwargs = tree_map(fresh, given)
    returned = call(between, first, *args, **kwargs)
    between()
    return list(leaves([tensors(returned), tensors((first, args, kwargs))]))


def calls_of(operator: Any, every_way: bool) -> Iterator[tuple[str, Call]]:
    yield "", forward_and_backward(operator)
    if every_way and operator.inplace_variant is not None:
        yield "_", in_place(operator)
    if every_way and operator.supports_out:
        yield ".out", into(operator)


@functools.cache
def cases(samples: int, every_way: bool, autocast: bool = False) -> list[Case]:
    """What gives the same bits twice, with so many samples of each operator."""
    with pytest.MonkeyPatch.context() as patch:
        # Torch looks through all modules of the process for who asks for samples: ten times as long as the operators.
        for module in ("common_utils", "opinfo.core"):
            patch.setattr(f"torch.testing._internal.{module}.extract_test_fn", lambda: None)
        return list(found_cases(samples, every_way, autocast))


def found_cases(samples: int, every_way: bool, autocast: bool) -> Iterator[Case]:
    common = pytest.importorskip("torch.testing._internal.common_methods_invocations")
    lists = ("unary", "binary", "pointwise", "reduce", "other")
    for operator in [*common.op_db, *(x for kind in lists for x in getattr(common, f"foreach_{kind}_op_db"))]:
        dtypes = operator.supported_dtypes("cpu")
        if operator.name in LEFT_OUT or "empty" in operator.name or not dtypes:
            continue
        dtype = torch.float32 if torch.float32 in dtypes else sorted(dtypes, key=str)[0]
        grad = operator.supports_autograd and dtype.is_floating_point
        for name, plain in calls_of(operator, every_way):
            call = under_autocast(plain) if autocast else plain
            for sample in itertools.islice(operator.sample_inputs("cpu", dtype, requires_grad=grad), samples):
                given = (sample.input, sample.args, sample.kwargs)
                try:
                    expected = run(call, given, lambda: None)
                    if same(run(call, given, lambda: None), expected):
                        yield Case(f"{operator.name}{name} {operator.variant_test_name}", call, given, expected)
                except (RuntimeError, AssertionError, TypeError, ValueError, LookupError):
                    break  # it has no such way, or needs a GPU


def emptying() -> Callable[[], None]:
    """A function that makes all tensors absent, and overwrites what they left."""
    core = native.load()
    filler: list[torch.Tensor] = []

    def empty_the_device() -> None:
        core.parts.evict_all()
        filler.clear()
        filler.extend(torch.full((CHUNK // 4,), 7000.0 + i) for i in range(BUDGET - 2))

    return empty_the_device


def check(samples: int, *, every_way: bool) -> int:
    core, empty_the_device = native.load(), emptying()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = cases(samples, every_way)
        with vtensor.enabled(BUDGET * CHUNK, chunk=CHUNK, min_size=1, host="64MiB", policy="lru"):
            wrong = [
                case.name for case in found if not same(run(case.call, case.given, empty_the_device), case.expected)
            ]
            assert core.validate() == ""
            assert vtensor.memory_stats()["evictions"] > len(found)
    assert wrong == []
    return len(found)


@mostly_beyond
def test_every_operator(late: bool) -> None:
    assert check(samples=1, every_way=False) > 500


@pytest.mark.long
def test_every_operator_in_every_way(late: bool) -> None:
    assert check(samples=8, every_way=True) > 2000
