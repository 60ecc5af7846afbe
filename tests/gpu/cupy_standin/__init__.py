"""CuPy's own pools where there is no GPU: its wheel's binaries over a CUDA runtime that is ordinary memory.

Covers: building CuPy's thin wrapper of the CUDA runtime (one Cython file of its source release) against ``runtime.c``,
and putting it in the place of the wheel's, so that the real ``MemoryPool`` runs: arenas, limits, retries.
Leaves: kernels, which need a real driver. Nothing of CuPy is kept here; its source release is fetched when the tests
run.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from pathlib import Path
from typing import Any

from vtensor import native
from vtensor.native.cuda_headers import cuda_include

HERE = Path(__file__).resolve().parent
MODULE = "cupy_backends.cuda.api.runtime"
# What the wheel was compiled with, as far as this file asks.
SETTINGS = {
    "CUPY_CUDA_VERSION": 13000,
    "CUPY_HIP_VERSION": 0,
    "CUPY_USE_CUDA_PYTHON": False,
    "CUPY_CUFFT_STATIC": False,
    "CUPY_DTYPE_DICT": {},
}
PROFILER = "#pragma once\n#include <cuda_runtime_api.h>\n" + "".join(
    f'extern "C" cudaError_t cudaProfiler{what}(void);\n' for what in ("Start", "Stop")
)


def build(into: Path) -> Path:
    """Fetch, translate and compile; return the library that stands in for CuPy's."""
    release = version("cupy-cuda13x")
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "cupy", f"cupy=={release}"]
    environment = os.environ | {"CUPY_INSTALL_USE_STUB": "1"}
    subprocess.run(pip, cwd=into, env=environment, check=True, capture_output=True)
    with tarfile.open(next(into.glob("cupy-*.tar.gz"))) as archive:
        if hasattr(tarfile, "data_filter"):  # Python 3.11 has it from 3.11.4 on
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(into)
    source = into / f"cupy-{release}"
    translate = (
        "from Cython.Build import cythonize; from setuptools import Extension; "
        f"cythonize([Extension('{MODULE}', ['{MODULE.replace('.', '/')}.pyx'], language='c++')], "
        f"compile_time_env={SETTINGS}, language_level=3, quiet=True)"
    )
    subprocess.run([sys.executable, "-c", translate], cwd=source, check=True, capture_output=True)
    generated = into / "cuda_profiler_api.h"
    generated.write_text(PROFILER)
    target = into / "runtime.so"
    headers = (into, sysconfig.get_path("include"), cuda_include(), native.sources_dir(), source)
    include = [f"-I{path}" for path in headers]
    wrapper = source / f"{MODULE.replace('.', '/')}.cpp"
    stubs = into / "stubs.inc"
    # Every function of the runtime the wrapper names and runtime.c does not define answers "not supported".
    ours = set(re.findall(r"\b(cuda[A-Z]\w+)\(", (HERE / "runtime.c").read_text()))
    unit = into / "wrapper.o"
    subprocess.run(["g++", "-O0", "-fPIC", "-w", *include, "-c", wrapper, "-o", unit], check=True)
    symbols = subprocess.run(["nm", "--undefined-only", unit], check=True, capture_output=True, text=True).stdout
    missing = sorted(set(re.findall(r"U (cuda[A-Z]\w+)", symbols)) - ours)
    stubs.write_text("".join(f"int {name}(void) {{ return 801; }}\n" for name in missing))
    runtime = into / "runtime.o"
    subprocess.run(["gcc", "-O1", "-fPIC", "-w", f"-I{into}", "-c", HERE / "runtime.c", "-o", runtime], check=True)
    # Its own functions first: a torch for CUDA brings a runtime of the same names.
    subprocess.run(["g++", "-shared", "-Wl,-Bsymbolic", unit, runtime, "-o", target], check=True)
    return target


class _Finder:
    def __init__(self, library: Path) -> None:
        self.library = library

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return importlib.util.spec_from_file_location(name, self.library) if name == MODULE else None


def inject(library: Path) -> None:
    """From now on ``import cupy`` finds a device. Before the first import of CuPy in the process."""
    sys.meta_path.insert(0, _Finder(library))
