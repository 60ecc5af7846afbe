"""The heuristics of an analysis by name.

Covers: which there are, and that a name is one.
Leaves: what each means (``choosing.cost``, ``choosing.choice``, ``choosing.selection``, ``timing.schedule``,
``planning.planner``, ``placing.mapping``).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_type_hints

__all__ = ["Costs", "Switches", "Timing"]

Costs = Literal["equal", "moves"]
Timing = Literal["packed", "just_in_time", "on_demand"]


def _names(hint: Any) -> list[str]:
    """Of a literal, or of a union of some."""
    return [name for part in get_args(hint) for name in ([part] if isinstance(part, str) else _names(part))]


@dataclass(frozen=True, slots=True)
class Switches:
    """The heuristics by name; the defaults are the product's, the others are baselines and for ablation.

    What each means is said once, for whoever reads this and for ``lgm analyze --help``.
    """

    costs: Annotated[
        Costs | Literal["auto"],
        "what eviction costs: its copies (moves), the same for all (equal), or, where there is time to try both, "
        "whichever is faster (auto)",
    ] = "auto"
    leads: Annotated[
        Literal["copies", "none"],
        "when the memory of something evicted counts as free: once its copy can have ended, or at once (none)",
    ] = "copies"
    choice: Annotated[
        Literal["optimal", "sweep"],
        "how to choose what is evicted: the cheapest set that suffices, or as memory runs out (sweep)",
    ] = "optimal"
    granularity: Annotated[Literal["chunk", "tensor"], "evict parts of a tensor, or whole tensors only"] = "chunk"
    timing: Annotated[
        Timing | Literal["auto"],
        "when copies back begin: as early as there is room, just in time, on demand; auto: as is fastest",
    ] = "auto"
    reservation: Annotated[Literal["auto", "none"], "keep chunks free ahead of demand, or not"] = "auto"
    mapping: Annotated[Literal["keep", "none"], "keep freed memory mapped for the next tensor that fits, or not"] = (
        "keep"
    )
    settling: Annotated[Literal["simulated", "none"], "schedule once more by the simulated times, or not"] = "simulated"

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

    @classmethod
    def meanings(cls) -> dict[str, str]:
        """What each is for."""
        return {name: hint.__metadata__[0] for name, hint in get_type_hints(cls, include_extras=True).items()}

    def as_dict(self) -> dict[str, str]:
        return {f.name: getattr(self, f.name) for f in fields(self)}
