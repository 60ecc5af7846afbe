"""Schedules for models whose weights do not fit, on one device or several: Harmony's scheduler.

Source: Li et al., *Harmony*, VLDB 2022, arXiv 2202.01306, section 4, and its public code's cost model. A model is a
row of layers; layers make packs; a task takes all microbatches through one pack, forward, or backward with its forward
run again; each pack is updated right after its backward.

Rooms: ``profile`` (what is asked of layers; answered from a trace in ``recorded``, from Harmony's own measurements in
``measured``), ``packing`` (layers in packs), ``tasks`` (in which order, where), ``events`` (what happens when,
simulated), ``search`` (over packs and microbatches), ``report``; ``command`` is ``lgm harmony``.
"""

from __future__ import annotations

from .events import Outcome, simulate
from .measured import Measured, load_measured
from .profile import Profile
from .recorded import Recorded, profile_of
from .search import find_schedule
from .tasks import Machine, Schedule

__all__ = [
    "Machine",
    "Measured",
    "Outcome",
    "Profile",
    "Recorded",
    "Schedule",
    "find_schedule",
    "load_measured",
    "profile_of",
    "simulate",
]
