"""Optimal checkpoints: which layers of the forward pass to keep, so that the others can be recomputed.

``least_peak`` and ``rotor`` are the dynamic programs on chains of numbers, for the least peak and for the least time
within a memory; ``chain`` finds the chain in a trace; ``segments`` makes plans of what they say.
"""

from __future__ import annotations

from .chain import find_chain
from .least_peak import least_peak, least_peak_without_freeing, peak_of, peak_of_without_freeing
from .segments import best_checkpoints, checkpoints_at

__all__ = [
    "best_checkpoints",
    "checkpoints_at",
    "find_chain",
    "least_peak",
    "least_peak_without_freeing",
    "peak_of",
    "peak_of_without_freeing",
]
