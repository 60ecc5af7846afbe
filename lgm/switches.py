"""The heuristics of an analysis by name.

Covers: which there are, and that a name is one.
Leaves: what each means (``choosing.cost``, ``choosing.choice``, ``choosing.selection``, ``timing.schedule``,
``planning.planner``, ``placing.mapping``).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Literal, get_args, get_type_hints

__all__ = ["Costs", "Switches", "Timing"]

Costs = Literal["equal", "moves"]
Timing = Literal["packed", "just_in_time", "on_demand"]


def _names(hint: Any) -> list[str]:
    """Of a literal, or of a union of some."""
    return [name for part in get_args(hint) for name in ([part] if isinstance(part, str) else _names(part))]


@dataclass(frozen=True, slots=True)
class Switches:
    """The heuristics by name; the defaults are the product's, the others are baselines and for ablation."""

    costs: Costs | Literal["auto"] = "auto"
    leads: Literal["copies", "none"] = "copies"
    choice: Literal["optimal", "sweep"] = "optimal"
    granularity: Literal["chunk", "tensor"] = "chunk"
    timing: Timing | Literal["auto"] = "auto"
    reservation: Literal["auto", "none"] = "auto"
    mapping: Literal["keep", "none"] = "keep"
    settling: Literal["simulated", "none"] = "simulated"

    def __post_init__(self) -> None:
        for name, names in self.choices().items():
            if getattr(self, name) not in names:
                raise ValueError(f"{name}={getattr(self, name)!r} is unknown; choose one of {', '.join(names)}")

    @classmethod
    @cache
    def choices(cls) -> dict[str, tuple[str, ...]]:
        """What each may be, the default first."""
        hints = get_type_hints(cls)
        return {f.name: tuple(dict.fromkeys([str(f.default), *_names(hints[f.name])])) for f in fields(cls)}

    def as_dict(self) -> dict[str, str]:
        return {f.name: getattr(self, f.name) for f in fields(self)}
