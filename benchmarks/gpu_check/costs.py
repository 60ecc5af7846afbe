"""What mapping, copying and packing cost on this GPU, by size.

Covers: CUDA's virtual memory and the bus (C4), small pieces packed by a kernel.
Leaves: what that makes of training (``compare``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from vtensor import native

from ..record import Row
from .kept import Kept

__all__ = ["costs", "packing"]

MIB = 1 << 20


def costs(kept: Kept) -> None:
    """What mapping and copying cost, by chunk size (C4), beside torch's own pinned copies."""
    module = native.load()
    size: dict[str, Any] = {"size": (256 * MIB,), "dtype": torch.uint8}
    outs, ins = [(torch.empty(**size, pin_memory=True), torch.empty(**size, device="cuda")) for _ in range(2)]
    lanes: Any = [torch.cuda.Stream(), torch.cuda.Stream()]  # type: ignore[no-untyped-call]

    def link(out: bool, in_: bool) -> float:
        """Bytes a second, of each direction."""
        for _ in range(2):
            torch.cuda.synchronize()
            begun = time.perf_counter()
            for _ in range(8):
                with torch.cuda.stream(lanes[0]):
                    if out:
                        outs[0].copy_(outs[1], non_blocking=True)
                with torch.cuda.stream(lanes[1]):
                    if in_:
                        ins[1].copy_(ins[0], non_blocking=True)
            torch.cuda.synchronize()
            passed = time.perf_counter() - begun
        return 8 * 256 * MIB / passed

    kept.add("torch", {
        "chunk": "torch, 256 MiB pinned",
        "out (GB/s)": round(link(True, False) / 1e9, 1),
        "in (GB/s)": round(link(False, True) / 1e9, 1),
        "both, each (GB/s)": round(link(True, True) / 1e9, 1),
    })  # fmt: skip
    for chunk in (2, 4, 8, 16, 32, 64):
        if f"{chunk} MiB" in kept:
            continue
        found = module.parts.measure_cuda(chunk=chunk * MIB, chunks=max(2048 // chunk, 32), ordinal=0)
        kept.add(f"{chunk} MiB", {
            "chunk": f"{chunk} MiB",
            **{name: round(found[name], 1) for name in found if name.endswith("_us")},
            "out (GB/s)": round(found["out_bytes_per_second"] / 1e9, 1),
            "in (GB/s)": round(found["in_bytes_per_second"] / 1e9, 1),
            "both, each (GB/s)": round(found["each_of_both_bytes_per_second"] / 1e9, 1),
            "in, from memory used in place (GB/s)": round(found["in_from_place_bytes_per_second"] / 1e9, 1),
        })  # fmt: skip


def _packing(count: int, size: int) -> Row:
    import cupy

    from vtensor.native import chunk_ops

    runtime, stream = cupy.cuda.runtime, cupy.cuda.get_current_stream()
    out = runtime.memcpyDeviceToHost
    apart = cupy.zeros((count, 2 * size), cupy.uint8)
    pieces = [(int(apart[i].data.ptr), size) for i in range(count)]
    packed, host = cupy.empty(count * size, cupy.uint8), cupy.cuda.alloc_pinned_memory(count * size)

    def singly() -> None:
        for i, (at, nbytes) in enumerate(pieces):
            runtime.memcpyAsync(host.ptr + i * size, at, nbytes, out, stream.ptr)

    def at_once() -> None:
        chunk_ops.gather(pieces, packed)
        runtime.memcpyAsync(host.ptr, packed.data.ptr, packed.nbytes, out, stream.ptr)

    def quickest(copy: Callable[[], None]) -> float:
        taken = []
        for _ in range(6):  # the first compiles
            stream.synchronize()
            begun = time.perf_counter()
            copy()
            stream.synchronize()
            taken.append(time.perf_counter() - begun)
        return round(min(taken) * 1e3, 3)

    return {
        "pieces": count,
        "of (KiB)": size >> 10,
        "a copy each (ms)": quickest(singly),
        "packed (ms)": quickest(at_once),
    }


def packing(kept: Kept) -> None:
    """Many small pieces out of the GPU: a copy for each, or one kernel and one copy (``chunk_ops``)."""
    for kib in (4, 16, 64, 256, 1024):
        if str(kib) not in kept:
            kept.add(str(kib), _packing(256, kib << 10))
