"""The native core: the C++ of ``kernels/``, built on first use and loaded.

``library`` builds and loads it, ``core`` types what it offers, ``cache`` says where builds are kept and whether they
may be trusted, ``cuda_headers`` finds what a build for a GPU needs. ``chunk_ops`` launches kernels on a GPU's bytes,
for measuring and tests.
"""

from __future__ import annotations

from .library import (
    build,
    compiler,
    flags,
    is_cuda,
    is_seam,
    library_path,
    load,
    python_include,
    sources_dir,
    torch_include,
    unit_text,
    units,
)

__all__ = [
    "build",
    "compiler",
    "flags",
    "is_cuda",
    "is_seam",
    "library_path",
    "load",
    "python_include",
    "sources_dir",
    "torch_include",
    "unit_text",
    "units",
]
