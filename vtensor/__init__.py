"""vtensor: train PyTorch models that do not fit, at a budget in bytes that holds.

    import vtensor
    vtensor.enable(budget="4GiB")

or, with no edit at all, ``vtensor run --budget 4GiB train.py``. ``vtensor --help`` says more.

Importing this package builds nothing and touches no device; :func:`enable` does.
"""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("torch") is None:
    raise ImportError("vtensor trains PyTorch models, and PyTorch is not installed here: pip install torch")

from .devices.gpu import cupy_allocator
from .errors import (
    BuildError,
    ConfigError,
    HarmonyError,
    NotEnabledError,
    NotRecordedError,
    UnsupportedDeviceError,
    VtensorError,
)
from .harmony import Harmony
from .planning.current_planner import step
from .planning.traces import record, save_trace
from .primitives import Residency, VTensor, merge, residency, salloc, split
from .reports.page import report
from .reports.profile_tracks import tracks
from .reports.stats import memory_stats, memory_summary, reset_peak_memory_stats
from .session.enabling import adopt, disable, enable, enabled
from .session.lifecycle import is_enabled

__version__ = "0.1.0"

__all__ = [
    "BuildError",
    "ConfigError",
    "Harmony",
    "HarmonyError",
    "NotEnabledError",
    "NotRecordedError",
    "Residency",
    "UnsupportedDeviceError",
    "VTensor",
    "VtensorError",
    "adopt",
    "cupy_allocator",
    "disable",
    "enable",
    "enabled",
    "is_enabled",
    "memory_stats",
    "memory_summary",
    "merge",
    "record",
    "report",
    "reset_peak_memory_stats",
    "residency",
    "salloc",
    "save_trace",
    "split",
    "step",
    "tracks",
]
