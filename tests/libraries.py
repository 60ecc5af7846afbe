"""Libraries of C++ that are linked to torch, compiled for a test."""

from __future__ import annotations

import subprocess
from pathlib import Path

from torch.utils.cpp_extension import include_paths, library_paths

__all__ = ["shared_library"]


def shared_library(source: Path, text: str) -> Path:
    """Of this text, as it is in a file of that name, beside which the library lies."""
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_text(text)
    built = source.with_suffix(".so")
    include, lib = (
        [f"{prefix}{path}" for path in find()] for prefix, find in (("-I", include_paths), ("-L", library_paths))
    )
    command = ["g++", "-std=c++20", "-shared", "-fPIC", *include, str(source), "-o", str(built), *lib, "-ltorch_cpu"]
    subprocess.run([*command, "-lc10"], check=True)
    return built
