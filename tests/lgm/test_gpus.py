"""What an iteration would take on a GPU: by its bytes, or by the time a processor took to multiply."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import lgm
from lgm.fitting.gpus import GPUS, on_gpu
from lgm.iteration import analyze_lifetimes

from .random_traces import CHUNK, build

TRACES = Path(__file__).resolve().parents[2] / "traces"


def small() -> lgm.Trace:
    """`W` times `x` (row 0), relu of it (row 1), goes on (row 2), and `W` is written (row 3)."""
    tensors = [(4 * CHUNK, -1, -1), (2 * CHUNK, 0, 2), (2 * CHUNK, 1, 3)]
    uses = [(0, 0, 0, 4, 0), (1, 1, 0, 2, 0), (2, 2, 1, 2, 0), (3, 0, 0, 4, 1)]
    trace = build(4, tensors, uses)
    names = ("aten::addmm", "aten::relu", "(goes on)", "aten::add_.Tensor")
    last = np.array([0, 2, 2, 3])
    meta = {"flop_per_second": 1e11}
    return replace(trace, names=names, op_name=np.arange(4), op_ns=np.full(4, 10**9), op_last=last, meta=meta)


def test_times_follow_speeds() -> None:
    slow, fast = GPUS["gtx1650"], GPUS["h100"]
    for numbers in ("fp32", "bf16"):
        there = [on_gpu(small(), gpu, numbers).op_ns for gpu in (slow, fast)]  # type: ignore[arg-type]
        assert there[0][0] / there[1][0] == pytest.approx(
            fast.single / slow.single if numbers == "fp32" else fast.half / slow.half, rel=1e-5
        )
    assert on_gpu(small(), slow).op_ns[1:].tolist() == [2000] * 3  # nothing is shorter than a kernel


def test_an_activation_as_large_as_a_weight_grows_too() -> None:
    """A weight, an activation, a gradient of the weight and a temporary of the optimizer's, all of one size."""
    tensors = [(4 * CHUNK, -1, -1), (4 * CHUNK, 0, 2), (4 * CHUNK, 2, 3), (4 * CHUNK, 3, 3)]
    uses = [(0, 0, 0, 4, 0), (2, 1, 0, 4, 0), (3, 0, 0, 4, 1), (3, 2, 0, 4, 0)]
    names = ("aten::mm", "aten::relu", "aten::threshold_backward", "aten::add_.Tensor")
    trace = replace(build(4, tensors, uses), names=names, op_name=np.arange(4), meta={"flop_per_second": 1e11})
    assert on_gpu(trace, GPUS["h100"], batch=3).tensor_bytes.tolist() == [4 * CHUNK, 12 * CHUNK, 4 * CHUNK, 4 * CHUNK]


def test_larger_batches_need_what_they_need() -> None:
    """Peaks in chunks of 2 MiB, as two and four times the batch were measured (R7): 1,428 and 2,346 MiB."""
    trace = lgm.load_trace(TRACES / "resnet50.npz")
    for batch, mib in ((2, 1428), (4, 2346)):
        assert analyze_lifetimes(on_gpu(trace, GPUS["h100"], batch=batch)).peak * 2 == pytest.approx(mib, rel=0.02)


def test_a_larger_batch_grows_all_but_weights() -> None:
    trace = lgm.load_trace(TRACES / "gpt2.npz")
    larger = on_gpu(trace, GPUS["h100"], batch=8)
    lasting = trace.tensor_bytes[trace.lasting].sum()
    assert larger.tensor_bytes[larger.lasting].sum() == lasting
    grown = (analyze_lifetimes(larger).peak - 150) / (analyze_lifetimes(trace).peak - 150)
    assert 4 < grown < 8
    halved = on_gpu(trace, GPUS["h100"], "bf16", batch=8)
    assert analyze_lifetimes(halved).peak == pytest.approx(analyze_lifetimes(larger).peak / 2, rel=0.02)


def test_other_chunks_hold_the_same_parts() -> None:
    trace = lgm.load_trace(TRACES / "bert.npz")
    there = on_gpu(trace, GPUS["h100"], batch=8, chunk_bytes=16 << 20)
    assert there.chunk_bytes == 16 << 20
    assert (there.tensor_bytes >= 8 << 20).all()
    assert (there.use_last <= there.chunks[there.use_tensor]).all()
    assert there.operations == trace.operations


def test_a_trace_that_says_nothing_of_its_machine_is_refused() -> None:
    with pytest.raises(lgm.LgmError, match="record it anew"):
        on_gpu(replace(small(), meta={}), GPUS["h100"])
    with pytest.raises(ValueError, match="fp8"):
        on_gpu(small(), GPUS["h100"], "fp8")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 1"):
        on_gpu(small(), GPUS["h100"], batch=0)


def test_what_multiplies_takes_longer_for_more_samples_and_a_convolution_goes_by_tensor_cores() -> None:
    gpu = GPUS["h100"]
    one, three = (int(on_gpu(small(), gpu, batch=batch).op_ns[0]) for batch in (1, 3))
    assert three == pytest.approx(3 * one)
    convolution = replace(small(), names=("aten::convolution", *small().names[1:]))
    faster = gpu.single_tensor * gpu.convolving / (gpu.single * 0.76)  # of which products reach that much
    assert one / on_gpu(convolution, gpu).op_ns[0] == pytest.approx(faster, rel=1e-5)
