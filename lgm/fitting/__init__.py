"""What an iteration would take elsewhere.

On a GPU that is not here (``gpus``; which rows run kernels there: ``kernels``); in less memory, and in other batch
sizes (``fits``).
"""

from __future__ import annotations

from .gpus import GPUS, Gpu, Numbers, on_gpu

__all__ = ["GPUS", "Gpu", "Numbers", "on_gpu"]
