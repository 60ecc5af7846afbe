"""Whether the core compiles against a torch of another version: ``python -m tests.gpu.cuda_headers 2.11.0 2.15.0``.

Downloads the wheel for its headers alone (half a gigabyte for a CUDA build), compiles nothing into an object.
Without an argument: the torch that is installed, which tests/gpu/test_cuda.py also does.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from vtensor import native
from vtensor.native.cuda_headers import cuda_include

# What torch's build generates, and a CPU wheel leaves out.
MACROS = "#pragma once\n#define C10_CUDA_BUILD_SHARED_LIBS\n"


def check(torch_include: Path, *, seams: bool = False, each: bool = False) -> None:
    """Compile all CUDA sources against these headers, without writing anything. Raises with the compiler's words.

    `seams`: and all else that includes torch. `each`: all there are, each by itself, as where a machine has many cores
    (``vtensor.native.units``).
    """
    cuda = cuda_include()
    assert cuda is not None, "no cuda.h: pip install nvidia-cuda-runtime"
    assert native.compiler() is not None, "no C++ compiler"
    with tempfile.TemporaryDirectory() as scratch:
        generated = Path(scratch) / "c10/cuda/impl/cuda_cmake_macros.h"
        generated.parent.mkdir(parents=True)
        generated.write_text(MACROS)
        include = [
            f"-isystem{path}"
            for path in (
                torch_include,
                torch_include / "torch/csrc/api/include",
                scratch,
                cuda,
                native.python_include(),
            )
        ]
        sources = [
            source
            for source in sorted(native.sources_dir().glob("*/*.cpp"))
            if each or native.is_cuda(source) or (seams and native.is_seam(source))
        ]
        assert sources, "no sources were found"
        for unit in [[source] for source in sources] if each else native.units(sources, workers=1):
            compiles(native.unit_text(unit), include)


def compiles(text: str, include: list[str]) -> None:
    """As part of the core, with these folders beside its own. Raises with the compiler's words."""
    command = [str(native.compiler()), *native.flags(), "-DVT_CUDA", "-fsyntax-only", f"-I{native.sources_dir()}"]
    done = subprocess.run([*command, *include, "-xc++", "-"], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{text}:\n{done.stderr[-4000:]}"


def check_release(version: str) -> None:
    """The same with the headers of that torch."""
    with tempfile.TemporaryDirectory() as scratch:
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", scratch, f"torch=={version}"]
        subprocess.run(pip, check=True)
        with zipfile.ZipFile(next(Path(scratch).glob("*.whl"))) as wheel:
            wheel.extractall(scratch, [name for name in wheel.namelist() if name.startswith("torch/include/")])
        check(Path(scratch) / "torch/include", seams=True)


def main() -> None:
    if len(sys.argv) == 1:
        check(native.torch_include()[0])
        print("compiles against the installed torch")
    for version in sys.argv[1:]:
        check_release(version)
        print(f"compiles against torch {version}")


if __name__ == "__main__":
    main()
