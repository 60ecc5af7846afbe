"""Schedules for models whose weights do not fit, on one device or several: Harmony's scheduler.

Source: Li et al., *Harmony*, VLDB 2022, arXiv 2202.01306, section 4, and its public code's cost model. A model is a
row of layers; layers make packs; a task takes all microbatches through one pack, forward, or backward with its forward
run again; each pack is updated right after its backward.

Rooms: ``profile`` (what layers take, from a trace), ``packing`` (layers in packs), ``tasks`` (in which order, where),
``events`` (what happens when, simulated), ``search`` (over packs and microbatches), ``report``.
"""

from __future__ import annotations

from .events import Outcome, simulate
from .profile import Profile, profile_of
from .search import find_schedule
from .tasks import Machine, Schedule

__all__ = ["Machine", "Outcome", "Profile", "Schedule", "find_schedule", "profile_of", "simulate"]
