"""The links that make this machine resemble others: those of the edge in PLAN.md, and of Harmony's share of a switch.

A link is as much slower than theirs as this processor is than their GPU.
"""

from __future__ import annotations

from vtensor.planning.speeds import flop_per_second

# A GTX 1650 computes about 3 TFLOP/s in fp32 and has PCIe 3.0 x16, about 12 GB/s.
FLOP_PER_BYTE = 3e12 / 12e9
# Harmony's machine: a GTX 1080 Ti computes 11.3 TFLOP/s, and all have 11.5 GiB/s together; of its four, two at work.
FLOP_PER_BYTE_SHARED = 11.3e12 / (11.5 * 2**30 / 2)


def link_for(flop: float, flop_per_byte: float = FLOP_PER_BYTE, step: float = 1e8) -> float:
    """Bytes a second each way, in whole steps."""
    return max(round(flop / flop_per_byte / step), 1) * step


def link_here() -> float:
    """The link that is to this processor what PCIe is to that GPU."""
    return link_for(flop_per_second())


def shared_link_here() -> float:
    """The link that is to this processor what its share of the switch is to a GPU of Harmony's machine.

    To the processor at its best: a moment at which others have it would make for a slower link in all that is measured.
    """
    return link_for(max(flop_per_second() for _ in range(5)), FLOP_PER_BYTE_SHARED, 1e6)
