"""What an iteration recorded on a processor would take on a GPU, by arithmetic.

Covers: GPUs by name; how long each operation takes there; a larger batch, and another number format.
Leaves: traces recorded on a GPU, which say it themselves (``vtensor run --save-trace``).

How a time is come by: a kernel that is bound by memory takes (bytes read + written) / the memory's speed. One that
multiplies matrices (convolutions among them) takes what it took on the processor, scaled by how fast both multiply;
or as long as its bytes, if that is longer. Peak speeds are those of the makers' data sheets, times what eager kernels
reach of them. ``DESIGN.md`` holds the H100 against a real one. Which rows are kernels: ``kernels``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from ..errors import LgmError
from ..iteration.roles import phases
from ..records.limits import MOST_BYTES
from ..records.model import Bools, Floats, Ints, Trace
from .kernels import Kernels

__all__ = ["GPUS", "Gpu", "Numbers", "on_gpu"]

Numbers = Literal["fp32", "bf16"]

_OF_MEMORY, _OF_FLOPS = 0.55, 0.76  # what eager kernels reach of the data sheet: so that an H100 is as was measured
_SHORTEST = 2e-6  # seconds of any kernel
# Tensor cores want the channels of an image side by side, torch its rows: so kernels before and after a convolution put
# what it reads and writes in the other order. Each reads and writes all of it.
_REARRANGING = 2


@dataclass(frozen=True, slots=True)
class Gpu:
    """Speeds in bytes and operations a second."""

    title: str
    memory: int
    """Bytes."""
    memory_speed: float
    link: float
    """To the host's memory, each way; 0: they are one memory, and moving something there frees nothing."""
    single: float
    """Multiplying in fp32."""
    single_tensor: float
    """Convolutions of fp32 numbers, for which torch lets tensor cores round (TF32)."""
    half: float
    """Multiplying in bf16, or fp16 where there is no bf16."""
    tensor_cores: bool = True
    """Whether it has some, on which convolutions are computed."""
    convolving: float = 0.45
    """The share of these speeds that convolutions reach. (Assumed, but for the H100's: what is smaller is kept busy
    more easily.)"""

    @property
    def copies(self) -> float:
        """Bytes a second of a copy each way; between one memory and itself, where none is made, any."""
        return self.link or 1.0


GPUS = {
    "h100": Gpu("H100 SXM, PCIe 5", 80 << 30, 3.35e12, 54e9, 67e12, 495e12, 989e12, convolving=0.069),
    "rtx3060-laptop": Gpu("RTX 3060 laptop, PCIe 4 x8", 6 << 30, 336e9, 12e9, 10.9e12, 10.9e12, 21.8e12),
    "gtx1650": Gpu("GTX 1650, PCIe 3 x16", 4 << 30, 128e9, 12e9, 3.0e12, 3.0e12, 6.0e12, tensor_cores=False),
    "jetson-orin": Gpu("Jetson AGX Orin, one memory", 32 << 30, 204.8e9, 0.0, 5.3e12, 10.6e12, 21.2e12),
}


def on_gpu(trace: Trace, gpu: Gpu, numbers: Numbers = "fp32", batch: int = 1, chunk_bytes: int | None = None) -> Trace:
    """The iteration as it would be on a GPU.

    Parameters
    ----------
    trace
        Recorded on a processor; ``meta["flop_per_second"]`` says how fast that multiplies.
    numbers
        ``"bf16"``: every tensor takes half the bytes.
    batch
        So many times as many samples: weights, and after the forward pass what is as large as one, stay so, all else
        grows.
    chunk_bytes
        Of the device. Default: as recorded. What is less than half of one is not managed there.

    Raises
    ------
    LgmError
        If the trace does not say how fast its machine was.
    """
    if numbers not in get_args(Numbers):
        raise ValueError(f"numbers={numbers!r} is unknown; choose one of {', '.join(get_args(Numbers))}")
    if batch < 1:
        raise ValueError(f"batch={batch} must be at least 1")
    if batch * int(trace.tensor_bytes.max(initial=0)) > MOST_BYTES:
        raise ValueError(f"batch={batch} makes tensors of more bytes than any machine addresses")
    try:
        here = float(trace.meta["flop_per_second"])
    except (KeyError, TypeError, ValueError):
        raise LgmError(
            "this trace does not say how fast its machine multiplies (it is a GPU's, or older than that): "
            "record it anew, on a processor"
        ) from None
    size = np.where(_of_any_batch(trace), 1, batch) * trace.tensor_bytes
    larger = _with_sizes(trace, -(-size // 2) if numbers == "bf16" else size, trace.chunk_bytes)
    seconds = _seconds(larger, trace.op_ns / 1e9 * batch * here, gpu, numbers)
    there = _with_sizes(larger, larger.tensor_bytes, chunk_bytes or trace.chunk_bytes)
    return replace(
        _without(there, there.tensor_bytes < there.chunk_bytes // 2),
        op_ns=np.round(seconds * 1e9).astype(np.int64),
        meta={**trace.meta, "gpu": gpu.title, "numbers": numbers, "batch": f"{batch} x {trace.meta.get('batch', 1)}"},
    )


def _seconds(trace: Trace, multiplications: Floats, gpu: Gpu, numbers: Numbers) -> Floats:
    """[n] How long each row takes. Of a product each has the share that it had on the processor.

    `multiplications`: [n] how many each row could have been there in its time.
    """
    rows, memory = Kernels.of(trace), gpu.memory_speed * _OF_MEMORY
    seconds = np.maximum(rows.touched / memory, rows.runs * _SHORTEST)
    seconds[0] = max(seconds[0], _SHORTEST)  # where nothing runs at all
    part = np.flatnonzero(rows.product >= 0)
    of = rows.product[part]
    many, touched = (np.bincount(of, each[part], trace.operations)[of] for each in (multiplications, rows.touched))
    plain, convolved = (gpu.single, gpu.single_tensor) if numbers == "fp32" else (gpu.half, gpu.half)
    rate = np.where(rows.convolution[part], convolved * gpu.convolving, plain * _OF_FLOPS)
    rearranged = rows.convolution[part] & gpu.tensor_cores
    whole = np.maximum(np.maximum(many / rate, touched / memory), _SHORTEST)
    whole += rearranged * _REARRANGING * touched / memory
    seconds[part] = whole * np.where(many > 0, multiplications[part] / np.maximum(many, 1.0), of == part)
    return np.asarray(seconds, dtype=np.float64)


def _of_any_batch(trace: Trace) -> Bools:
    """[m] What is as large for every batch: what lasts, and gradients and the optimizer's temporaries.

    Those are told by their sizes, which the forward pass's own may have too: it makes none of them.
    """
    backward, _ = phases(trace)
    forward = (trace.tensor_born >= 0) & (trace.tensor_born < backward)
    like_a_weight = np.isin(trace.tensor_bytes, trace.tensor_bytes[trace.lasting])
    return np.asarray(trace.lasting | (like_a_weight & ~forward), dtype=bool)


def _with_sizes(trace: Trace, size: Ints, chunk_bytes: int) -> Trace:
    """Tensors of other sizes, in other chunks: a use of a part stays one of the same part."""
    old, new = trace.chunks[trace.use_tensor], -(-size // chunk_bytes)[trace.use_tensor]
    first = np.minimum(trace.use_first * new // old, new - 1)
    last = np.maximum(-(-trace.use_last * new // old), first + 1)
    return replace(trace, chunk_bytes=chunk_bytes, tensor_bytes=size, use_first=first, use_last=last)


def _without(trace: Trace, gone: Bools) -> Trace:
    """The trace without some tensors."""
    number = np.cumsum(~gone) - 1
    used = ~gone[trace.use_tensor]
    tensors = {f"tensor_{name}": getattr(trace, f"tensor_{name}")[~gone] for name in ("bytes", "born", "died")}
    uses = {f"use_{name}": getattr(trace, f"use_{name}")[used] for name in ("op", "tensor", "first", "last", "write")}
    return replace(trace, **tensors, **{**uses, "use_tensor": number[uses["use_tensor"]]})
