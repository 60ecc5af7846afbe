"""``python -m benchmarks.ecosystem LOOP BUDGET``: one loop as a process, and what its steps took as a line of JSON."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

import vtensor
from vtensor.demo.worker import digest

from .loops import LOOPS


def main(name: str, budget: str) -> None:
    """`budget`: bytes, "plain" for torch alone."""
    warnings.filterwarnings("ignore")
    loop, processes, _ = LOOPS[name]
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // processes))
    if budget != "plain":
        vtensor.enable(budget, device="cpu")
    processor: list[float] = []
    register_optimizer_step_post_hook(lambda *_: processor.append(time.process_time()))
    net = loop()
    stats: dict[str, Any] = {} if budget == "plain" else vtensor.memory_stats()
    states = [p.to_local() if hasattr(p, "to_local") else p for p in net.parameters()]
    sys.stdout.write(json.dumps({"processor": processor, "digest": digest(states), "stats": stats}) + "\n")
    sys.stdout.flush()
    os._exit(0)  # torch.distributed aborts one process in ten while the interpreter ends


if __name__ == "__main__":
    main(*sys.argv[1:])
