"""One training run in a process of its own: plain, or under a budget. Speaks JSON lines on stdout.

``{"step": i, "loss": x, "seconds": s}`` after each step, ``{"done": ...}`` with the digest of everything at the end.
A line on stdin starts each step, so that two runs can take turns and their times be compared in pairs.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any, cast

import torch

import vtensor

from ..devices.math_library import settle
from .workloads import workload

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


def peak_rss() -> int:
    """Bytes of real memory this process had at most, by the kernel's count."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmHWM")


def say(**message: Any) -> None:
    print(json.dumps(message), flush=True)


def main(name: str, steps: int, options: dict[str, Any] | None, checkpointing: bool = False, settled: int = 0) -> None:
    """Train `steps` steps; `options` are those of :func:`vtensor.enable`, or None for plain torch.

    Peaks are counted anew after `settled` steps.
    """
    if options is not None:
        vtensor.enable(device="cpu", **options)
    settle()
    torch.manual_seed(0)
    model, batch = workload(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    model.train()
    if checkpointing:
        cast(Any, model).gradient_checkpointing_enable({"use_reentrant": False})
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
        if options is not None and step + 1 == settled:
            vtensor.reset_peak_memory_stats()
        say(step=step, loss=losses[-1], seconds=time.perf_counter() - begun)
    stats = {} if options is None else vtensor.memory_stats()
    rss = peak_rss()
    result = digest([model.state_dict(), optimizer.state_dict()["state"], losses])
    say(done=True, stats=stats, peak_rss=rss, digest=result)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), **json.loads(sys.argv[3]))
