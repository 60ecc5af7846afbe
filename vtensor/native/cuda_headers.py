"""Where CUDA's headers are.

Covers: a CUDA toolkit, and the headers that come with torch's own CUDA packages.
Leaves: compiling with them (``library``, ``tests/native/Makefile``).
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

__all__ = ["cuda_include"]


def _candidates() -> Iterator[Path]:
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            yield Path(os.environ[variable]) / "include"
    for site in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *sys.path}:
        nvidia = Path(site) / "nvidia"  # nvidia-cuda-runtime: 13 puts all in one folder, 12 has one for each package
        yield from sorted(nvidia.glob("cu1*/include"), reverse=True)
        yield nvidia / "cuda_runtime" / "include"
    nvcc = shutil.which("nvcc")
    if nvcc:
        yield Path(nvcc).resolve().parent.parent / "include"
    yield Path("/usr/local/cuda/include")


def cuda_include() -> Path | None:
    """Folder that holds ``cuda.h`` and ``cuda_runtime_api.h``; None if there is none."""
    return next((path for path in _candidates() if (path / "cuda.h").is_file()), None)
