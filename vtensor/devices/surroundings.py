"""What kind of place a GPU stands in, and what that means: Windows' WSL, a slice of a GPU, a virtual one, several.

Covers: telling them apart, and a sentence on each, from what CUDA's and vGPU's documents say.
Leaves: whether the memory can be managed at all, which the driver says itself (``gpu.look_at_gpu``).
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["Surrounding", "look_around"]

Surrounding = tuple[str, str]
"""What it is, and what follows."""

_VIRTUAL = re.compile(r"^GRID\b|\bvGPU\b|-\d+[ABCQ]$")  # "GRID T4-8Q", "NVIDIA A16-4C"


def look_around(
    name: str, count: int, release: str | None = None, libraries: str | None = None
) -> Iterator[Surrounding]:
    """What is special about this process' place.

    Parameters
    ----------
    name
        The current GPU's, as the driver gives it.
    count
        GPUs that torch sees.
    release, libraries
        The system's, and what is loaded (``/proc/self/maps``). Default: as they are here.
    """
    release = platform.release() if release is None else release
    libraries = Path("/proc/self/maps").read_text() if libraries is None else libraries
    if count > 1:
        yield (
            "several gpus",
            f"torch sees {count}; a process manages one, the current device when it enables: start one process for "
            "each (torchrun), and let CUDA_VISIBLE_DEVICES or torch.cuda.set_device say which",
        )
    if "microsoft" in release.lower():
        yield (
            "wsl",
            "Windows' WSL lets a process pin less memory than it has: what cannot be pinned is copied "
            "more slowly, and unified memory is not fully there; where copies are slow, a larger budget= helps most",
        )
    if "MIG" in name.split():
        yield (
            "gpu instance",
            "a slice of a GPU (MIG): its own memory is what is managed, and budgets are shares of that; it shares the "
            "bus with the other slices",
        )
    elif _VIRTUAL.search(name):
        yield (
            "virtual gpu",
            "a vGPU: its frame buffer is what is managed, where its driver offers cuMemMap (see 'gpu memory'); unified "
            "memory is off by default there, so that operations larger than the budget may overdraw it",
        )
    if "libsanitizer-collection" in libraries:
        yield (
            "sanitizer",
            "compute-sanitizer watches this process: kernels are many times slower, so measured times and plans made "
            "of them mean nothing; use policy='lru' for such a run",
        )
