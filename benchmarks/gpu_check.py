"""``make gpu-check``: everything that needs a GPU, in one command of at most nine minutes.

Parts (``--part``, several may be given; default all, in this order): ``programs`` (tests/gpu/test_gpu.py), ``costs``
(what mapping and copying cost by chunk size), ``models`` (four models beside plain torch and what else people use,
every way capped to the same bytes). Each part writes its own result file, so that a short slot suffices.

``--device cpu --small`` runs the same code without a GPU, to see that it runs; its figures mean nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import vtensor
from lgm.bounds import least_seconds_in_windows
from lgm.lifetimes import analyze_lifetimes
from vtensor import native
from vtensor.planning import newest_plan, wait_for_plan

from .record import Row, write

ROOT = Path(__file__).resolve().parent.parent
WARM, TIMED = 6, 5
MIB = 1 << 20


# --- models ---------------------------------------------------------------------------------------------------------


def _models(small: bool) -> dict[str, Callable[[], tuple[nn.Module, dict[str, torch.Tensor]]]]:
    import transformers as hf

    def resnet() -> tuple[nn.Module, dict[str, torch.Tensor]]:
        batch, pixels = (2, 64) if small else (96, 224)
        inputs = {"pixel_values": torch.randn(batch, 3, pixels, pixels), "labels": torch.randint(0, 2, (batch,))}
        return hf.ResNetForImageClassification(hf.ResNetConfig()), inputs

    def gpt2() -> tuple[nn.Module, dict[str, torch.Tensor]]:
        size = {"n_layer": 2, "n_embd": 64, "n_head": 2} if small else {}
        tokens = torch.randint(0, 50257, (1, 64) if small else (6, 1024))
        return hf.GPT2LMHeadModel(hf.GPT2Config(**size)), {"input_ids": tokens, "labels": tokens}

    def bert() -> tuple[nn.Module, dict[str, torch.Tensor]]:
        size = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2} if small else {}
        tokens = torch.randint(0, 30522, (2, 32) if small else (48, 256))
        return hf.BertForMaskedLM(hf.BertConfig(**size)), {"input_ids": tokens, "labels": tokens}

    def vit() -> tuple[nn.Module, dict[str, torch.Tensor]]:
        size = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2} if small else {}
        batch = 2 if small else 96
        inputs = {"pixel_values": torch.randn(batch, 3, 224, 224), "labels": torch.randint(0, 2, (batch,))}
        return hf.ViTForImageClassification(hf.ViTConfig(**size)), inputs

    return {"resnet50": resnet, "gpt2": gpt2, "bert": bert, "vit": vit}


# --- ways to train ----------------------------------------------------------------------------------------------------


def _keep(model: nn.Module) -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext()


def _stock_offload(model: nn.Module) -> contextlib.AbstractContextManager[Any]:
    return torch.autograd.graph.save_on_cpu(pin_memory=True)


def _fair_offload(model: nn.Module) -> contextlib.AbstractContextManager[Any]:
    """Like ``save_on_cpu``, without waiting for copies out and without moving parameters."""
    parameters = {p.untyped_storage()._cdata for p in model.parameters()}

    def pack(tensor: torch.Tensor) -> Any:
        if tensor.device.type != "cuda" or tensor.untyped_storage()._cdata in parameters:
            return tensor
        packed = torch.empty(tensor.size(), dtype=tensor.dtype, layout=tensor.layout, pin_memory=True)
        packed.copy_(tensor, non_blocking=True)
        return tensor.device, packed

    def unpack(packed: Any) -> torch.Tensor:
        return packed if isinstance(packed, torch.Tensor) else packed[1].to(packed[0], non_blocking=True)

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


def _checkpoint(model: nn.Module, **options: Any) -> None:
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False}, **options)  # type: ignore[operator]


PEERS: dict[str, tuple[Callable[[nn.Module], None] | None, Callable[..., Any]]] = {
    "checkpoint per block": (_checkpoint, _keep),
    "checkpoint, offloaded": (lambda model: _checkpoint(model, offload=True), _keep),
    "save_on_cpu, stock": (None, _stock_offload),
    "save_on_cpu, fair": (None, _fair_offload),
}


class Run:
    """One model trained one way: seconds of its steps, its final state, what it took."""

    def __init__(self, make: Any, device: str, autocast: bool, prepare: Any = None, around: Any = _keep) -> None:
        torch.manual_seed(0)
        model, inputs = make()
        if prepare is not None:
            prepare(model)
        model.to(device).train()
        inputs = {name: value.to(device) for name, value in inputs.items()}
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        self.seconds: list[float] = []
        self.losses: list[torch.Tensor] = []
        for step in range(WARM + TIMED):
            _wait(device)
            if step == WARM:
                before = _host_waits()
            begun = time.perf_counter()
            optimizer.zero_grad()
            with torch.autocast(device, torch.bfloat16, enabled=autocast), around(model):
                loss = model(**inputs).loss
            loss.backward()
            optimizer.step()
            _wait(device)
            self.seconds.append(time.perf_counter() - begun)
            self.losses.append(loss.detach().cpu())
            wait_for_plan()
        self.host_waits = _host_waits() - before
        self.state = [value.detach().cpu() for value in model.state_dict().values()]

    @property
    def step(self) -> float:
        return statistics.median(self.seconds[WARM:])

    def same(self, other: Run) -> str:
        pairs = zip(self.state + self.losses, other.state + other.losses, strict=True)
        return "yes" if all(torch.equal(a, b) for a, b in pairs) else "NO"


def _foreseen() -> Row:
    """What the plan foresaw, and what none can beat with this budget and link, in whatever order it copies."""
    plan = newest_plan()
    if plan is None:
        return {}
    least = least_seconds_in_windows(plan.trace, plan.device, analyze_lifetimes(plan.trace))
    return {
        "foreseen (ms)": round(plan.prediction.step_seconds * 1e3, 1),
        "computing (ms)": round(plan.trace.seconds * 1e3, 1),
        "no plan beats (ms)": round(least * 1e3, 1),
    }


def _host_waits() -> int:
    return int(vtensor.memory_stats()["host_waits"]) if vtensor.is_enabled() else 0


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _clear(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


@contextlib.contextmanager
def _capped(device: str, nbytes: int) -> Iterator[None]:
    """Torch's own allocator may hold no more than so many bytes."""
    if device != "cuda":
        yield
        return
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(nbytes / total, 1.0))
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def _row(model: str, dtype: str, share: str, way: str, run: Run | None, plain: Run, **more: Any) -> Row:
    row: Row = {"model": model, "dtype": dtype, "budget": share, "way": way}
    if run is None:
        return row | {"step ratio": "does not fit"}
    ratio = round(run.step / plain.step, 3)
    return row | {"step ratio": ratio, "step (ms)": round(run.step * 1e3, 1), "identical": run.same(plain), **more}


def _managed(make: Any, device: str, autocast: bool, budget: int, policy: str, chunk: str) -> tuple[Run, Row]:
    free = torch.cuda.mem_get_info()[0] if device == "cuda" else 0
    with vtensor.enabled(budget, device=device, policy=policy, chunk=chunk):
        run = Run(make, device, autocast)
        s = vtensor.memory_stats()
        taken = free - torch.cuda.mem_get_info()[0] if device == "cuda" else 0
    return run, {
        "held peak (MiB)": s["held_bytes.peak"] // MIB,
        "budget (MiB)": s["budget_bytes"] // MIB,
        "overdrawn (MiB)": s["overdrawn_bytes.peak"] // MIB,
        "driver-visible (MiB)": taken // MIB,
        "pinned (MiB)": s["pinned_bytes"] // MIB,
        "out (MiB/step)": s["moved_out_bytes"] // (WARM + TIMED) // MIB,
        "in (MiB/step)": s["moved_in_bytes"] // (WARM + TIMED) // MIB,
        "host waits, all and timed steps": f"{s['host_waits']}, {run.host_waits}",
        "planned": f"{s['planned_iterations']} of {s['iterations']}",
        **_foreseen(),
    }


def models(device: str, small: bool, names: list[str], dtypes: list[str], seconds: float) -> None:
    """Plain torch, vtensor with room to spare, reactive and planned, and the alternatives at the same bytes."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # Attention takes a backward pass that repeats itself only where no other is allowed.
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    rows: list[Row] = []
    chunk = "64KiB" if small else "16MiB"
    ends = time.monotonic() + seconds
    for name, make in _models(small).items():
        for dtype in dtypes:
            if name not in names or time.monotonic() > ends:
                continue
            autocast = dtype == "bf16"
            _clear(device)
            plain = Run(make, device, autocast)
            rows.append(_row(name, dtype, "none", "plain torch", plain, plain))
            with vtensor.enabled(0.5, device=device, policy="lru", chunk=chunk):
                slack = Run(make, device, autocast)
                peak = vtensor.memory_stats()["wanted_bytes.peak"]
            rows.append(_row(name, dtype, "slack", "vtensor", slack, plain, **{"held peak (MiB)": peak // MIB}))
            for share in (0.75, 0.5, 0.35):
                budget = int(peak * share)
                for policy in ("lru", "plan"):
                    _clear(device)
                    run, figures = _managed(make, device, autocast, budget, policy, chunk)
                    rows.append(_row(name, dtype, f"{share:.0%}", f"vtensor {policy}", run, plain, **figures))
                    print(rows[-1], flush=True)
                for way, (prepare, around) in PEERS.items():
                    if device != "cuda":
                        continue
                    _clear(device)
                    peer: Run | None = None
                    with _capped(device, budget), contextlib.suppress(torch.OutOfMemoryError, ValueError, TypeError):
                        peer = Run(make, device, autocast, prepare, around)
                    rows.append(_row(name, dtype, f"{share:.0%}", way, peer, plain))
                    print(rows[-1], flush=True)
    write("gpu_models" + ("_dry" if device != "cuda" else ""), rows, "Every way capped to the same bytes (C3).")


def costs() -> None:
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

    rows: list[Row] = [
        {
            "chunk": "torch, 256 MiB pinned",
            "out (GB/s)": round(link(True, False) / 1e9, 1),
            "in (GB/s)": round(link(False, True) / 1e9, 1),
            "both, each (GB/s)": round(link(True, True) / 1e9, 1),
        },
    ]
    for chunk in (2, 4, 8, 16, 32, 64):
        found = module.measure_cuda(chunk=chunk * MIB, chunks=max(2048 // chunk, 32), ordinal=0)
        rows.append({
            "chunk": f"{chunk} MiB",
            **{name: round(found[name], 1) for name in found if name.endswith("_us")},
            "out (GB/s)": round(found["out_bytes_per_second"] / 1e9, 1),
            "in (GB/s)": round(found["in_bytes_per_second"] / 1e9, 1),
            "both, each (GB/s)": round(found["each_of_both_bytes_per_second"] / 1e9, 1),
            "in, from memory used in place (GB/s)": round(found["in_from_place_bytes_per_second"] / 1e9, 1),
        })  # fmt: skip
        print(rows[-1], flush=True)
    write("gpu_costs", rows, "CUDA's virtual memory and the bus: goal (C4), 90 % of the pinned link each way.")


def _packing(count: int, size: int) -> Row:
    import cupy

    from vtensor import chunk_ops

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


def packing() -> None:
    """Many small pieces out of the GPU: a copy for each, or one kernel and one copy (``vtensor/chunk_ops.py``)."""
    rows = [_packing(256, kib << 10) for kib in (4, 16, 64, 256, 1024)]
    write("gpu_packing", rows, "Small pieces out of the GPU, singly or packed by a kernel.")


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.gpu_check", description=__doc__)
    parser.add_argument("--part", action="append", choices=["programs", "costs", "models"])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny models: to see that it runs")
    parser.add_argument("--model", action="append", help="resnet50, gpt2, bert, vit (default: all)")
    parser.add_argument("--dtype", action="append", choices=["fp32", "bf16"])
    parser.add_argument(
        "--seconds", type=float, default=330, help="begin no further model after so many (default: 330)"
    )
    chosen = parser.parse_args()
    if chosen.device == "cuda" and not torch.cuda.is_available():
        sys.exit("gpu-check: torch sees no GPU here; 'vtensor doctor' says what is missing")
    parts = chosen.part or ["programs", "costs", "models"]
    failed = 0
    if "programs" in parts:
        tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/gpu/test_gpu.py"]
        failed = subprocess.run(tests, cwd=ROOT, check=False).returncode
    if "costs" in parts and chosen.device == "cuda":
        costs()
        packing()
    if "models" in parts:
        names = chosen.model or ["resnet50", "gpt2", "bert", "vit"]
        models(chosen.device, chosen.small, names, chosen.dtype or ["fp32", "bf16"], chosen.seconds)
    sys.exit(failed)


if __name__ == "__main__":
    main()
