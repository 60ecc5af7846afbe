"""Where CUDA's headers are.

Covers: a CUDA toolkit, and the headers that come with torch's own CUDA packages or are installed in this environment.
Leaves: what those include and only the toolkit brings (``kernels/crt``); compiling with them (``library``,
``tests/native/Makefile``).
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

__all__ = ["cuda_include", "how_to_get_them"]


def _candidates() -> Iterator[Path]:
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            yield Path(os.environ[variable]) / "include"
    for site in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *sys.path}:
        nvidia = Path(site) / "nvidia"  # nvidia-cuda-runtime: 13 puts all in one folder, 12 has one for each package
        yield from sorted(nvidia.glob("cu1*/include"), reverse=True)
        yield nvidia / "cuda_runtime" / "include"
    yield from sorted(Path(sys.prefix).glob("targets/*-linux/include"))  # conda's cuda-cudart-dev
    nvcc = shutil.which("nvcc")
    if nvcc:
        yield Path(nvcc).resolve().parent.parent / "include"
    yield Path("/usr/local/cuda/include")


def cuda_include(cuda: str | None = None) -> Path | None:
    """Folder that holds ``cuda.h`` and ``cuda_runtime_api.h``; None if there is none.

    Of several one of the major version torch was built with (`cuda`, e.g. "12.8"): where CuPy brought another, or
    CUDA_HOME leads to another, an older driver would be asked for newer names.
    """
    wanted = ("cuda.h", "cuda_runtime_api.h")
    found = [path for path in _candidates() if all((path / name).is_file() for name in wanted)]
    fits = (path for path in found if cuda is not None and _major(path) == int(cuda.partition(".")[0]))
    return next(fits, found[0] if found else None)


def _major(folder: Path) -> int | None:
    version = re.search(r"#define CUDA_VERSION (\d+)", (folder / "cuda.h").read_text(errors="replace"))
    return int(version[1]) // 1000 if version else None


def how_to_get_them(cuda: str) -> str:
    """Where there is none, and torch was built with `cuda`, e.g. "12.8"."""
    major = int(cuda.partition(".")[0])
    package = "nvidia-cuda-runtime" + (f"-cu{major}" if major < 13 else "")  # what torch's own packages bring
    return f"install them with 'pip install {package}', or set CUDA_HOME to a CUDA toolkit"
