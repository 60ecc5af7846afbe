"""What no plan can beat: by copies alone (``copies``), and whatever it copies and recomputes (``mixes``)."""

from __future__ import annotations

from .copies import least_seconds, least_seconds_in_windows
from .mixes import least_seconds_of_any_mix

__all__ = ["least_seconds", "least_seconds_in_windows", "least_seconds_of_any_mix"]
