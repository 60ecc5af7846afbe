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
    """The price of being away: its copies (``"moves"``), or the same for all; ``"auto"``: copies, then both."""
    leads: Literal["copies", "none"] = "copies"
    """Count on a gap once its copy out can have ended, or from its beginning on."""
    choice: Literal["optimal", "sweep"] = "optimal"
    """How gaps are chosen: the cheapest set that suffices, or one by one as memory runs out."""
    granularity: Literal["chunk", "tensor"] = "chunk"
    """Whether parts of a tensor may leave, or whole ones only."""
    timing: Timing | Literal["auto"] = "auto"
    """When copies in begin: as early as there is room, just in time, or where they are needed; ``"auto"`` simulates."""
    reservation: Literal["auto", "none"] = "auto"
    """Chunks kept free ahead of demand."""
    mapping: Literal["keep", "none"] = "keep"
    """Whether addresses stay mapped for the next tensor that fits."""
    settling: Literal["simulated", "none"] = "simulated"
    """Schedule again by simulated times, or not."""

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
