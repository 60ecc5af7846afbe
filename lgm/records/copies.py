"""Copies one way as the core is asked for them: what a plan moves, or what a policy without one brings back."""

from __future__ import annotations

from dataclasses import dataclass

from .model import Ints

__all__ = ["Copies"]


@dataclass(frozen=True, slots=True)
class Copies:
    """k copies in the order in which they begin: with operation `op`, chunks [first, last) of a tensor."""

    op: Ints
    tensor: Ints
    first: Ints
    last: Ints
