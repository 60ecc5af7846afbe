"""How large a batch each GPU trains (E1): with plain PyTorch, and with plans at 1.1 and 1.5 times a sample's time.

Covers: the devices of ``lgm.fitting`` and the six models of ``traces/``, by arithmetic.
Leaves: how a time is come by (``lgm.fitting``), what a real one does (``gpu_check``).
"""

from __future__ import annotations

import json
from typing import Any

import lgm
from lgm.fitting import GPUS
from lgm.fitting.fits import LARGEST, largest_batches
from vtensor.demo.workloads import WORKLOADS
from vtensor.settings.config import chunk_for

from .plans import TRACES
from .record import Row, write

LIMITS = (1.1, 1.5)
MOST = 32 << 30  # these models are small for more


def run() -> None:
    rows: list[Row] = []
    for gpu in (gpu for gpu in GPUS.values() if gpu.memory <= MOST):
        for name, workload in WORKLOADS.items():
            trace = lgm.load_trace(TRACES / f"{name}.npz")
            shapes: dict[str, Any] = json.loads(str(trace.meta["batch"]))
            samples = next(iter(shapes.values()))[0]
            found = largest_batches(trace, gpu, LIMITS, chunk_for("cuda", gpu.memory))
            row: Row = {"device": gpu.title, "model": workload.title}
            for way, times in zip(("plain PyTorch", *(f"at {limit}" for limit in LIMITS)), found, strict=True):
                row[way] = f"{times * samples} and more" if times >= LARGEST else times * samples
            rows.append(row)
            print(row, flush=True)
    write("devices", rows, "Largest batches, modelled: none of these was measured on the device.")
