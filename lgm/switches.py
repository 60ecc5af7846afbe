"""The heuristics of an analysis by name.

Covers: which there are, and that a name is one.
Leaves: what each means (``cost``, ``choice``, ``selection``, ``schedule``, ``planner``, ``mapping``).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, get_args

__all__ = ["Costs", "Switches", "Timing"]

Costs = Literal["equal", "moves"]
Timing = Literal["packed", "just_in_time", "on_demand"]


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
        allowed = {
            "costs": ("auto", *get_args(Costs)),
            "leads": ("copies", "none"),
            "choice": ("optimal", "sweep"),
            "granularity": ("chunk", "tensor"),
            "timing": ("auto", *get_args(Timing)),
            "reservation": ("auto", "none"),
            "mapping": ("keep", "none"),
            "settling": ("simulated", "none"),
        }
        for name, names in allowed.items():
            if getattr(self, name) not in names:
                raise ValueError(f"{name}={getattr(self, name)!r} is unknown; choose one of {', '.join(names)}")

    def as_dict(self) -> dict[str, str]:
        return {f.name: getattr(self, f.name) for f in fields(self)}
