"""What callbacks tell: the figures of a step, as loggers take them.

Covers: differences and averages since the last time. Leaves: counting (``vtensor.reports``), logging (the libraries).
"""

from __future__ import annotations

from ..reports.stats import memory_stats
from ..session.lifecycle import is_enabled

__all__ = ["Figures"]

_MIB = 1 << 20
_COUNTS = ("wait_seconds", "iterations", "planned_iterations")
_MOVED = {
    "moved_out_mib": "moved_out_bytes",
    "moved_in_mib": "moved_in_bytes",
    "recomputed_mib": "made_bytes",
}


class Figures:
    """Of the steps since they were asked for last."""

    def __init__(self) -> None:
        self._before: dict[str, float] = {}

    def of(self, steps: int) -> dict[str, float]:
        """By name, all beginning with ``vtensor/``; empty if vtensor is not enabled.

        ``budget_mib`` and ``held_mib`` (the most so far); ``moved_out_mib``, ``moved_in_mib``, ``recomputed_mib``
        and ``waited_seconds`` of a step, averaged over `steps`; ``planned``: which share of them followed a plan.
        """
        if not is_enabled():
            return {}
        stats = memory_stats()
        steps = max(steps, 1)

        def each(name: str) -> float:
            now, before = float(stats[name]), self._before.get(name, 0.0)
            return (now - before if now >= before else now) / steps  # a new session counts anew

        found = {"budget_mib": stats["budget_bytes"] / _MIB, "held_mib": stats["held_bytes.peak"] / _MIB}
        found |= {name: each(key) / _MIB for name, key in _MOVED.items()}
        found["waited_seconds"] = each("wait_seconds")
        seen = each("iterations")
        found["planned"] = each("planned_iterations") / seen if seen > 0 else 0.0
        self._before = {name: float(stats[name]) for name in (*_MOVED.values(), *_COUNTS)}
        return {f"vtensor/{name}": value for name, value in found.items()}
