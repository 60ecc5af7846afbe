"""The link that makes this machine resemble an edge GPU: how PLAN.md finds the speed of B4, B4s and B5."""

from __future__ import annotations

from vtensor.recorder import flop_per_second

# A GTX 1650 computes about 3 TFLOP/s in fp32 and has PCIe 3.0 x16, about 12 GB/s.
FLOP_PER_BYTE = 3e12 / 12e9


def link_for(flop: float) -> float:
    """Bytes a second each way, in steps of 100 MB/s."""
    return max(round(flop / FLOP_PER_BYTE / 1e8), 1) * 1e8


def link_here() -> float:
    """The link that is to this processor what PCIe is to that GPU."""
    return link_for(flop_per_second())
