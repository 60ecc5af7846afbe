"""Which rows of an iteration run kernels, and what those touch: nothing is counted that others count, too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import lgm
from lgm.fitting import GPUS, on_gpu
from lgm.fitting.kernels import Kernels
from lgm.iteration.roles import phases

from .random_traces import CHUNK, build

TRACES = Path(__file__).resolve().parents[2] / "traces"


def made_of(
    rows: list[tuple[str, int]],
    tensors: list[tuple[int, int, int]],
    uses: list[tuple[int, int, int, int, int]],
) -> Kernels:
    """Of rows, each a name and the last row within it; tensors in chunks."""
    sizes = [(chunks * CHUNK, born, died) for chunks, born, died in tensors]
    last = [end for _, end in rows]
    return Kernels.of(
        build(len(rows), sizes, uses, names=tuple(name for name, _ in rows), op_name=range(len(rows)), op_last=last)
    )


def touched(kernels: Kernels) -> list[int]:
    return (kernels.touched // CHUNK).tolist()


def test_what_another_row_carries_out_is_counted_there() -> None:
    rows = [("aten::relu", 1), ("aten::clamp_min", 1), ("aten::add_.Tensor", 2)]
    kernels = made_of(rows, [(2, -1, -1), (2, 1, -1)], [(0, 0, 0, 2, 0), (1, 0, 0, 2, 0), (2, 0, 0, 2, 1)])
    assert kernels.runs.tolist() == [False, True, True]
    assert touched(kernels) == [0, 4, 4]  # read and written


def test_making_and_naming_memory_touches_none_but_for_what_is_written_there_later() -> None:
    rows = [("aten::clone", 3), ("aten::empty_like", 2), ("aten::empty.memory_format", 2), ("aten::copy_", 3)]
    rows += [("aten::as_strided_", 4), ("aten::resize_", 5)]
    uses = [(row, 0, 0, 2, 0) for row in (0, 1, 3)] + [(row, 1, 0, 2, 1) for row in (3, 4, 5)]
    kernels = made_of(rows, [(2, -1, -1), (2, 2, -1)], uses)
    assert kernels.runs.tolist() == [False, False, False, True, False, False]
    assert touched(kernels) == [0, 0, 2, 2, 0, 0]


def test_what_a_kernel_has_made_is_read_when_it_is_written_in_place() -> None:
    rows = [("aten::mm", 0), ("aten::clamp_min_", 1), ("aten::native_batch_norm", 3), ("aten::empty_like", 3)]
    rows += [("aten::clamp_min_", 4)]
    kernels = made_of(rows, [(2, 0, -1), (2, 3, -1)], [(1, 0, 0, 2, 1), (4, 1, 0, 2, 1)])
    assert touched(kernels) == [2, 4, 0, 2, 4]


def test_who_writes_first_is_told_by_time_not_by_row() -> None:
    """A gradient that is made in one iteration, and freed in the next."""
    rows = [("aten::mul.Tensor", 0), ("aten::empty.memory_format", 1), ("aten::copy_", 2)]
    kernels = made_of(rows, [(2, 1, 0)], [(0, 0, 0, 2, 0), (2, 0, 0, 2, 1)])
    assert touched(kernels) == [2, 2, 0]


def test_a_second_write_reads_too() -> None:
    rows = [("aten::empty.memory_format", 0), ("aten::zero_", 1), ("aten::add_.Tensor", 2)]
    kernels = made_of(rows, [(2, 0, -1)], [(1, 0, 0, 2, 1), (2, 0, 0, 2, 1)])
    assert touched(kernels) == [2, 0, 4]


def test_a_product_is_one_kernel_with_all_that_lies_within_it() -> None:
    """The bias is copied first; numbers are put in another order, and (tensor 3) forgotten."""
    rows = [("aten::linear", 4), ("aten::addmm", 4), ("aten::copy_", 2), ("(goes on)", 3)]
    rows += [("aten::empty.memory_format", 4), ("aten::gelu", 5)]
    tensors = [(4, -1, -1), (1, -1, -1), (2, 1, -1), (3, 1, 3), (2, 5, -1)]
    uses = [(1, 0, 0, 4, 0), (1, 1, 0, 1, 0), (2, 1, 0, 1, 0), (2, 2, 0, 2, 1), (5, 2, 0, 2, 0)]
    kernels = made_of(rows, tensors, uses)
    assert kernels.product.tolist() == [-1, 1, 1, 1, 1, -1]
    assert kernels.runs.tolist() == [False, True, False, False, False, True]
    assert touched(kernels) == [0, 4 + 1 + 2, 0, 0, 0, 4]
    assert not kernels.convolution.any()


def test_of_nested_products_the_innermost_is_one() -> None:
    rows = [("aten::convolution", 2), ("aten::_convolution", 2), ("aten::mkldnn_convolution", 2)]
    kernels = made_of(rows, [(2, -1, -1), (2, 2, -1)], [(row, 0, 0, 2, 0) for row in range(3)])
    assert kernels.product.tolist() == [-1, -1, 2]
    assert kernels.convolution.tolist() == [False, False, True]
    assert touched(kernels) == [0, 0, 4]


def test_statistics_are_needed_before_results() -> None:
    for name, times in (("aten::native_batch_norm", 2), ("aten::native_layer_norm", 1)):
        kernels = made_of([(name, 0)], [(2, -1, -1), (2, 0, -1)], [(0, 0, 0, 2, 0)])
        assert touched(kernels) == [2 * times + 2]


def test_what_goes_on_is_what_it_began_as() -> None:
    rows = [("aten::gelu_backward", 1), ("(goes on)", 1), ("aten::clone", 4), ("(goes on)", 3), ("aten::copy_", 4)]
    kernels = made_of(rows, [(2, -1, -1)], [(1, 0, 1, 2, 0), (3, 0, 0, 2, 0)])
    assert kernels.runs.tolist() == [True, True, False, False, True]
    assert touched(kernels) == [0, 1, 0, 0, 0]


def test_times_of_a_product_are_shared_as_on_the_processor_and_never_less_than_its_bytes_take() -> None:
    sizes = [(4 * CHUNK, -1, -1), (2 * CHUNK, 0, -1)]
    names = ("aten::addmm", "aten::copy_")
    trace = build(2, sizes, [(0, 0, 0, 4, 0)], names=names, op_name=[0, 1], op_last=[1, 1], op_ns=[10**9, 3 * 10**9])
    gpu = GPUS["gtx1650"]
    there = on_gpu(replace(trace, meta={"flop_per_second": 1e11}), gpu)
    assert there.op_ns[1] == pytest.approx(3 * there.op_ns[0], rel=1e-6)
    assert there.seconds == pytest.approx(4e11 / (0.76 * gpu.single), rel=1e-6)
    short = on_gpu(replace(trace, op_ns=np.array([0, 1]), meta={"flop_per_second": 1e11}), gpu)
    assert short.op_ns.tolist() == [0, 2000]


def test_convolutions_on_tensor_cores_are_rearranged() -> None:
    trace = build(1, [(400 * CHUNK, -1, -1)], [(0, 0, 0, 400, 0)], names=("aten::convolution",))
    trace = replace(trace, op_ns=np.ones(1, dtype=np.int64), meta={"flop_per_second": 1e11})
    with_them, without = GPUS["rtx3060-laptop"], replace(GPUS["rtx3060-laptop"], tensor_cores=False)
    assert on_gpu(trace, with_them).seconds == pytest.approx(3 * on_gpu(trace, without).seconds, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "numbers", "batch", "larger", "measured"),
    [
        ("resnet50", "bf16", 16, 96 * 224**2 / (128 * 192**2), 50.6),
        ("resnet50", "fp32", 16, 96 * 224**2 / (128 * 192**2), 141.9),
        ("bert", "fp32", 12, 1.0, 219.1),
        ("vit", "fp32", 24, 1.0, 256.7),
    ],
)
def test_an_h100_takes_what_one_took(name: str, numbers: str, batch: int, larger: float, measured: float) -> None:
    """Milliseconds of plain PyTorch's step (``benchmarks/results/gpu_models_host16_2026-11-27``), where fp32 was not
    rounded to TF32. ResNet-50's images were larger there.
    """
    gpu = GPUS["h100"]
    if numbers == "fp32":
        gpu = replace(gpu, single_tensor=gpu.single, tensor_cores=False, convolving=0.22)
    there = on_gpu(lgm.load_trace(TRACES / f"{name}.npz"), gpu, numbers, batch, chunk_bytes=2 << 20)  # type: ignore[arg-type]
    assert there.seconds * larger * 1e3 == pytest.approx(measured, rel=0.05)
    backward, _ = phases(there)
    assert 0.25 < there.op_ns[:backward].sum() / there.op_ns.sum() < 0.45  # a third of all products is the forward pass
