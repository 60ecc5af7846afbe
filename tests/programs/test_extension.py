"""A legacy C++ extension that reads and writes raw pointers inside a Python autograd.Function: no dispatcher operation
tells anybody what it is about to touch."""

from __future__ import annotations

import ctypes
import importlib.util
import subprocess
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import vtensor
from vtensor import native

from ..identity import check_identity

SOURCE = r"""
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/utils/pybind.h>

// y = x^3, and its gradient, through raw pointers; and a write in place that autograd never hears of.
at::Tensor cube(const at::Tensor& x) {
  at::Tensor y = at::empty_like(x);
  const float* from = x.const_data_ptr<float>();
  float* to = y.mutable_data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i) to[i] = from[i] * from[i] * from[i];
  return y;
}
at::Tensor cube_backward(const at::Tensor& x, const at::Tensor& gradient) {
  at::Tensor result = at::empty_like(x);
  const float* from = x.const_data_ptr<float>();
  const float* g = gradient.const_data_ptr<float>();
  float* to = result.mutable_data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i) to[i] = 3.0f * from[i] * from[i] * g[i];
  return result;
}
void count_up(const at::Tensor& x) {
  float* values = const_cast<float*>(x.const_data_ptr<float>());
  for (int64_t i = 0; i < x.numel(); ++i) values[i] += 1.0f;
}
double total(const at::Tensor& x) {
  const float* values = x.const_data_ptr<float>();
  double sum = 0.0;
  for (int64_t i = 0; i < x.numel(); ++i) sum += values[i];
  return sum;
}
PYBIND11_MODULE(raw_pointers, m) {
  m.def("total", total);
  m.def("cube", cube);
  m.def("cube_backward", cube_backward);
  m.def("count_up", count_up);
}
"""


@pytest.fixture(scope="module")
def extension(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    folder = tmp_path_factory.mktemp("extension")
    (folder / "raw.cpp").write_text(SOURCE)
    library = folder / "raw_pointers.so"
    root = Path(torch.__file__).parent
    include = [root / "include", root / "include/torch/csrc/api/include", sysconfig.get_path("include")]
    compiler = native.compiler()
    assert compiler is not None
    flags = ["-std=c++20", "-O1", "-fPIC", "-shared", "-w", *(f"-I{path}" for path in include)]
    link = [f"-L{root / 'lib'}", "-ltorch_python", "-ltorch_cpu", "-lc10"]
    subprocess.run([compiler, *flags, str(folder / "raw.cpp"), "-o", str(library), *link], check=True)
    spec = importlib.util.spec_from_file_location("raw_pointers", library)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_raw_pointers_inside_autograd(extension: ModuleType) -> None:
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return extension.cube(x)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return extension.cube_backward(ctx.saved_tensors[0], gradient.contiguous())

    def program() -> Any:
        x = torch.randn(64, 64, requires_grad=True)
        w = torch.randn(64, 64, requires_grad=True)
        counter = torch.zeros(8 * 1024)
        hidden = x
        for _ in range(6):
            hidden = Cube.apply(torch.tanh(hidden @ w))
            extension.count_up(counter)
        hidden.sum().backward()
        extension.count_up(counter)
        return x.grad, w.grad, counter

    runs = check_identity(program, (0.5, 0.2, 0.1))
    assert runs[-1]["faults"] > 0


class Doubled(torch.autograd.Function):
    """Those below differ in their backwards."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2.0


@pytest.mark.parametrize("made", ["zeros", "clone"])
def test_what_a_backward_makes_and_others_write_unseen_is_not_made_again(extension: ModuleType, made: str) -> None:
    class Counted(Doubled):
        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            result = torch.zeros_like(gradient) if made == "zeros" else gradient.clone()
            extension.count_up(result)
            return result

    drop_all = native.load().parts.drop_all
    with vtensor.enabled("64MiB", device="cpu", chunk=4096, min_size=1, recompute="only"):
        native.load().observe()
        x = torch.ones(64, 64, requires_grad=True)
        Counted.apply(x).backward(torch.full((64, 64), 3.0))
        drop_all()
        assert x.grad is not None
        assert (x.grad == (1.0 if made == "zeros" else 4.0)).all()


def test_a_gradient_that_a_backward_writes_unseen_is_not_made_again(extension: ModuleType) -> None:
    kept = []

    class Written(Doubled):
        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            kept.append(gradient * 3.0)  # made of it as it was
            extension.count_up(gradient)
            kept.append(gradient)
            return gradient

    with vtensor.enabled("64MiB", device="cpu", chunk=4096, min_size=1, recompute="only"):
        native.load().observe()
        x, w, given = torch.ones(64, 64, requires_grad=True), torch.full((64, 64), 5.0), torch.ones(64, 64)
        (Written.apply(x) * w).backward(given)  # what made the gradient can be run again, and gives 5
        native.load().parts.drop_all()
        assert [float(tensor.mean()) for tensor in kept] == [15.0, 6.0]


def test_what_is_filled_by_others_is_not_made_again(extension: ModuleType) -> None:
    with vtensor.enabled("64MiB", device="cpu", chunk=4096, min_size=1, recompute="only"):
        native.load().observe()
        found = [torch.zeros(64, 64), torch.ones(64, 64), torch.full((64, 64), 2.0)]
        for tensor in found:
            extension.count_up(tensor)
        native.load().parts.drop_all()
        assert [float(tensor.mean()) for tensor in found] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_raw_pointers_inside_autograd_where_nothing_faults(extension: ModuleType, late: bool, where: str) -> None:
    """On a GPU, too, what a Function was given is there when it hands it on."""

    def total(x: torch.Tensor, now: str) -> float:
        if now == where:
            [torch.full((64, 64), 3.0) for _ in range(24)]  # more than the budget holds
            return float(extension.total(x))
        return 1.0

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x * total(x, "forward")

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return gradient * (1.0 + total(x, "backward") - total(gradient, "backward"))

    def program() -> Any:
        x = torch.randn(64, 64, requires_grad=True)
        w = torch.randn(64, 64, requires_grad=True)
        hidden = x
        for _ in range(6):
            hidden = torch.tanh(hidden @ w)
            hidden.sum()  # what no operation was given yet never leaves
            hidden = Scaled.apply(hidden).div(100.0)
        (hidden * hidden).sum().backward()
        return x.grad, w.grad

    runs = check_identity(program, (0.6, 0.35), policy="lru", overdraw=not late)
    assert runs[-1]["evictions"] > 0


@pytest.mark.parametrize("write", ["apply_", "map_", "dlpack"])
def test_what_is_written_by_its_address_is_not_made_again(write: str) -> None:
    with vtensor.enabled("64MiB", device="cpu", chunk=4096, min_size=1, recompute="only"):
        native.load().observe()
        ones = torch.ones(32, 64)  # what makes the other can be run again
        written = ones * 2.0
        if write == "apply_":
            written.apply_(lambda value: value + 1.0)
        elif write == "map_":
            written.map_(torch.ones(32, 64), lambda mine, other: mine + other)
        else:
            view = np.from_dlpack(_Capsule(torch.utils.dlpack.to_dlpack(written)))  # read-only, it says
            more = view + 1.0
            ctypes.memmove(view.ctypes.data, more.ctypes.data, view.nbytes)
        native.load().parts.drop_all()
        assert (written == 3.0).all()


class _Capsule:
    """As consumers of old see it: a capsule alone."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)
