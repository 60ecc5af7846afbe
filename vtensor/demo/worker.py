"""One training run in a process of its own: plain, or under a budget. Speaks JSON lines on stdout.

``{"step": i, "loss": x, "seconds": s}`` after each step, ``{"done": ...}`` with the digest of everything at the end.
A line on stdin starts each step, so that two runs can take turns and their times be compared in pairs.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from typing import Any

import torch

import vtensor

from .workloads import WORKLOADS

__all__ = ["digest", "main"]


def digest(values: Any) -> str:
    """SHA-256 over the bytes of every tensor and the text of everything else, in order."""
    sha = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, dict):
            for key in value:
                sha.update(repr(key).encode())
                add(value[key])
        elif isinstance(value, (list, tuple)):
            for item in value:
                add(item)
        elif isinstance(value, torch.Tensor):
            sha.update(repr((value.dtype, tuple(value.shape))).encode())
            sha.update(value.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        else:
            sha.update(repr(value).encode())

    add(values)
    return sha.hexdigest()


def say(**message: Any) -> None:
    print(json.dumps(message), flush=True)


def main(name: str, steps: int, budget: int) -> None:
    """Train; `budget` 0 is plain torch, -1 an unlimited budget (to measure the peak)."""
    if budget:
        vtensor.enable(1 << 50 if budget < 0 else budget, device="cpu")
    torch.manual_seed(0)
    model, batch = WORKLOADS[name].make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    model.train()
    losses = []
    say(ready=True)
    for step in range(steps):
        if sys.stdin.readline() == "":
            return  # whoever asked is gone
        begun = time.perf_counter()
        optimizer.zero_grad()
        loss = model(**batch(step)).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        say(step=step, loss=losses[-1], seconds=time.perf_counter() - begun)
    stats = vtensor.memory_stats() if budget else {}
    say(done=True, stats=stats, digest=digest([model.state_dict(), optimizer.state_dict()["state"], losses]))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
