"""The device that plans are made for, as the last iteration found it.

Covers: how fast it copies, and what of that computing pays for; how fast this processor multiplies matrices.
Leaves: the model of a device (:mod:`lgm`).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

import lgm
from lgm.records import ASSUMED_LINK, HOST_COSTS

from ..settings.available import processors
from ..settings.config import Config

__all__ = ["flop_per_second", "found_device"]

_ENOUGH = 64  # chunks moved, to tell what mapping one takes
_MOST_MAPPING = 5e-4  # seconds: more than that is something else
_SIZE = 2048  # of the matrices that are multiplied
_FEWEST, _MOST, _LONG = 3, 9, 0.5  # rounds, and seconds after which there are enough of them


def found_device(config: Config, before: Mapping[str, Any], now: Mapping[str, Any], stalls: float = 0.0) -> lgm.Device:
    """By the core's figures before and after an iteration: the last one, as earlier ones touched host memory for the
    first time, which is slow.

    `stalls` are the seconds of it that were not computing. Where threads that compute copy while they wait, what is not
    waiting is mapping: 8 us a chunk on one machine, 100 us on another, whose threads interrupt each other dearly.
    """

    def spent(name: str) -> float:
        return float(now[name] - before.get(name, 0))

    def speed(side: str) -> float:
        if spent(f"moved_{side}_bytes") < 16 * config.chunk or spent(f"{side}_ns") <= 0:
            return config.link or ASSUMED_LINK
        return spent(f"moved_{side}_bytes") / (spent(f"{side}_ns") / 1e9)

    moved = spent("moved_out_bytes") + spent("moved_in_bytes")
    tax = spent("processor_ns") / 1e9 / moved / processors() if moved else 0.0
    costs = HOST_COSTS if config.device == "cpu" else {}  # a GPU's copies take nothing from who computes
    if now.get("moves_in_wait") and moved >= _ENOUGH * config.chunk:
        mapping = (stalls - (spent("wait_ns") + spent("make_ns")) / 1e9) / (moved / config.chunk)
        costs = {**costs, "switch": min(max(mapping, costs.get("switch", 0.0)), _MOST_MAPPING)}
    return lgm.Device(config.budget_chunks, speed("out"), speed("in"), tax=tax, **costs)


def flop_per_second() -> float:
    """What torch multiplies matrices with on this processor, median of some rounds: what tells a trace's times from
    those of a GPU (:mod:`lgm.fitting`).

    In NumPy's memory: a session that is on neither holds it nor takes it for a part of the iteration.
    """
    import torch

    a, b, product = (torch.from_numpy(np.ones((_SIZE, _SIZE), dtype=np.float32)) for _ in range(3))
    seconds: list[float] = []
    while len(seconds) < _FEWEST or (len(seconds) < _MOST and sum(seconds) < _LONG):
        begun = time.perf_counter()
        torch.mm(a, b, out=product)
        seconds.append(time.perf_counter() - begun)
    return 2 * _SIZE**3 / statistics.median(seconds)
