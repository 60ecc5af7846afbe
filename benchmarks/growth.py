"""B6: how the analysis grows with the trace. Runs in fresh processes, so that each peak of memory is its own."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time

import numpy as np

import lgm
from lgm.iteration import analyze_lifetimes

from .record import write

SIZES = (2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000)


def synthetic(operations: int) -> lgm.Trace:
    """A trace shaped like training: two operations for each tensor, half of them weights and what belongs to them.

    Every operation is a call; those of the forward pass can be run again.
    """
    rng = np.random.default_rng(0)
    layers = -(-operations // 9)
    forward, n = 4 * layers, 9 * layers
    layer = np.arange(layers)
    begin, back = 4 * layer, forward + 4 * (layers - 1 - layer)
    chunks = rng.integers(1, 8, layers)
    columns: dict[str, list[np.ndarray]] = {k: [] for k in ("size", "born", "died", "op", "tensor", "last", "write")}
    made = 0

    def tensors(size: np.ndarray, born: np.ndarray, died: np.ndarray, uses: list[tuple[np.ndarray, int]]) -> None:
        nonlocal made
        ids = made + layer
        made += layers
        for key, value in (("size", size), ("born", born), ("died", died)):
            columns[key].append(value)
        for op, write_too in uses:
            for key, value in (("op", op), ("tensor", ids), ("last", size), ("write", np.full(layers, write_too))):
                columns[key].append(value)

    none = np.full(layers, -1)
    step = 2 * forward + layer
    tensors(chunks, none, none, [(begin, 0), (back, 0), (step, 1)])
    tensors(2 * chunks, none, none, [(step, 1)])
    tensors(chunks, back, np.minimum(layer, n - 1), [(step, 0)])
    for k in range(2):
        tensors(rng.integers(1, 10, layers), begin + k, back + 3 - k, [(begin + k + 1, 0), (back + 3 - k, 0)])
    joined = {key: np.concatenate(values) for key, values in columns.items()}
    order = np.argsort(joined["op"], kind="stable")
    zeros = np.zeros(n, dtype=np.int64)
    return lgm.Trace(
        chunk_bytes=1 << 21,
        names=("operation",),
        op_name=zeros,
        op_ns=rng.integers(100_000, 3_000_000, n),
        op_last=np.arange(n),
        tensor_bytes=(joined["size"] << 21) - rng.integers(0, 1 << 21, len(joined["size"])),  # most end within a chunk
        tensor_born=joined["born"],
        tensor_died=joined["died"],
        use_op=joined["op"][order],
        use_tensor=joined["tensor"][order],
        use_first=np.zeros(len(order), dtype=np.int64),
        use_last=joined["last"][order],
        use_write=joined["write"][order],
        call_first=np.arange(n),
        call_last=np.arange(n),
        call_again=(np.arange(n) < forward).astype(np.int64),
    )


def measure(operations: int) -> None:
    trace = synthetic(operations)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    budget = int(analyze_lifetimes(trace).peak * 0.5)
    begun = time.perf_counter()
    lgm.analyze(trace, lgm.Device(budget, 6e9, 6e9), recompute="never")
    copied = time.perf_counter() - begun
    begun = time.perf_counter()
    plan = lgm.analyze(trace, lgm.Device(budget, 5e8, 5e8), recompute="auto")  # so slow that copies cannot be hidden
    seconds = time.perf_counter() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({
        "operations": trace.operations, "tensors": trace.tensors, "uses": len(trace.use_op),
        "only copied (s)": round(copied, 2), "also recomputed (s)": round(seconds, 2),
        "recomputed": 0 if plan.remaking is None else len(plan.remaking.make_op),
        "us / (n log2 n)": round(seconds * 1e6 / (trace.operations * np.log2(trace.operations)), 2),
        "process peak (MiB)": peak >> 10, "of this before (MiB)": before >> 10, "reservation": plan.reservation,
    }))  # fmt: skip


def run() -> None:
    rows = []
    for size in SIZES:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.growth", str(size)], capture_output=True, text=True, check=True
        )
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        print(rows[-1], flush=True)
    write(
        "analysis",
        rows,
        "Time and memory of lgm.analyze at half of the peak (B6); goal: 3 s, 300 MB at 20,000; 4 s with calls (R10).",
    )


if __name__ == "__main__":
    measure(int(sys.argv[1]))
