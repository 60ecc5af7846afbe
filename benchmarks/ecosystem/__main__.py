"""``python -m benchmarks.ecosystem LOOP BUDGET RANK PORT``: one loop as a process that takes turns (``run``).

A line on stdin begins it, and each step after the first `WARM`. Before it waits for one it says, as a line of JSON,
what processor time the last step took; at the end, what became of all.
"""

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

from .loops import WARM
from .table import LOOPS


class _Gate:
    """Between steps."""

    def __init__(self) -> None:
        self.steps = 0
        self.since = 0.0

    def wait(self) -> None:
        if sys.stdin.readline() == "":
            os._exit(0)  # whoever asked is gone
        self.since = time.process_time()

    def after_step(self, *_: Any) -> None:
        self.steps += 1
        if self.steps >= WARM:
            _say({"step": self.steps, "processor": time.process_time() - self.since})
            self.wait()


_answers = os.fdopen(os.dup(1), "w")


def _say(what: dict[str, Any]) -> None:
    _answers.write(json.dumps(what) + "\n")
    _answers.flush()


def main(name: str, budget: str, rank: str, port: str) -> None:
    """`budget`: bytes or a share of the memory, "plain" for torch alone."""
    warnings.filterwarnings("ignore")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # libraries print dictionaries
    loop, processes, _ = LOOPS[name]
    if processes > 1:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(processes), "RANK": rank}
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // processes))
    if budget != "plain":
        vtensor.enable(budget, device="cpu")
    gate = _Gate()
    register_optimizer_step_post_hook(gate.after_step)
    _say({"ready": True})
    gate.wait()
    net = loop()
    stats: dict[str, Any] = {} if budget == "plain" else vtensor.memory_stats()
    states = [p.to_local() if hasattr(p, "to_local") else p for p in net.parameters()]
    _say({"digest": digest(states), "stats": stats})
    os._exit(0)  # torch.distributed aborts one process in ten while the interpreter ends


if __name__ == "__main__":
    main(*sys.argv[1:])
