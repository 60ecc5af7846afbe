"""What this package raises on purpose: every message is one line, and says what is wrong with what was given."""

from __future__ import annotations

__all__ = ["FormatError", "InfeasibleError", "InvalidPlanError", "LgmError"]


class LgmError(Exception):
    """Base of what this package raises on purpose, but for an argument that can never work: that is a ValueError."""


class FormatError(LgmError):
    """A file that is no trace or plan, is damaged, or was written by a newer version."""


class InfeasibleError(LgmError):
    """No plan exists: one operation alone needs more than the budget, or, where nothing is copied, the whole does.

    Attributes
    ----------
    operation : str
        The operation and its index.
    needed : int
        Bytes it uses at once: the smallest budget that works.
    budget : int
        Bytes that were allowed.
    """

    def __init__(self, operation: str, needed: int, budget: int, text: str) -> None:
        super().__init__(text)
        self.operation, self.needed, self.budget = operation, needed, budget


class InvalidPlanError(LgmError):
    """A plan breaks a rule; `rule` is its name."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule
