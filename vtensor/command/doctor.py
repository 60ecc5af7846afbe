"""``vtensor doctor``: what is here, what is missing, what to do about it."""

from __future__ import annotations

import importlib.util
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from .. import native
from ..devices.gpu import look_at_gpu
from ..devices.surroundings import look_around
from ..errors import BuildError, UnsupportedDeviceError, VtensorError
from ..native.core import Core
from ..native.cuda_headers import cuda_include, how_to_get_them
from ..settings.available import most_chunks, most_mappings, physical_memory, processors
from ..settings.sizes import format_bytes

__all__ = ["examine", "report"]

_TORCH = (2, 11)  # as in pyproject.toml
_MAPPINGS = 65530  # the default of Linux

Finding = tuple[str, bool, str]
"""What was looked at, whether it is as needed, and what was found or what to do."""


def examine() -> list[Finding]:
    """Look at everything vtensor needs. Builds the native core if it is not built yet."""
    return [finding for look in _LOOKS for finding in look()]


def report() -> int:
    """Print the findings; 0 if all is well, else 1."""
    findings = examine()
    for what, well, text in findings:
        print(f"  {'ok  ' if well else 'MISS'}  {what:<16} {text}")
    bad = sum(not well for _, well, _ in findings)
    print("Everything vtensor needs is here." if bad == 0 else f"{bad} of {len(findings)} need attention; see above.")
    return 1 if bad else 0


def _python() -> Iterator[Finding]:
    yield "python", sys.version_info >= (3, 11), f"{platform.python_version()} (3.11 or newer is needed)"


def _kernel() -> Iterator[Finding]:
    linux = sys.platform == "linux"
    release = platform.release()
    new_enough = linux and tuple(int(part) for part in release.split("-")[0].split(".")[:2]) >= (5, 7)
    yield "kernel", new_enough, f"{platform.system()} {release} (Linux 5.7 or newer is needed for mremap in place)"
    if not linux:
        return
    count = most_mappings()
    yield (
        "mappings",
        count >= _MAPPINGS,
        f"vm.max_map_count = {count}: room for about {format_bytes(most_chunks() * (2 << 20))} in chunks of 2 MiB"
        + (f"; 'sysctl -w vm.max_map_count={_MAPPINGS}' is what most systems have" if count < _MAPPINGS else ""),
    )


def _memory() -> Iterator[Finding]:
    yield "memory", True, f"{format_bytes(physical_memory())} of RAM, {processors()} cores"


def _torch() -> Iterator[Finding]:
    import torch

    enough = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) >= _TORCH
    needed = ".".join(map(str, _TORCH))
    how = "" if enough else f"; pip install 'torch>={needed}'"
    yield "torch", enough, f"{torch.__version__} ({needed} or newer is needed{how})"
    if torch.version.cuda is not None:
        headers = cuda_include(torch.version.cuda)
        text = str(headers or f"no cuda.h; {how_to_get_them(torch.version.cuda)}")
        yield "cuda headers", headers is not None, text
    if not torch.cuda.is_available():
        built = "built with CUDA" if torch.version.cuda else "built without CUDA"
        yield "gpu", True, f"none seen by torch ({built}); CPU tensors can be managed"
        return
    yield "gpu", True, f"{torch.cuda.get_device_name()}, {format_bytes(torch.cuda.mem_get_info()[1])}"
    for what, text in look_around(torch.cuda.get_device_name(), torch.cuda.device_count()):
        yield what, True, text


def _compiler() -> Iterator[Finding]:
    try:
        found = native.compiler()
    except BuildError as error:
        yield "compiler", False, str(error)
        return
    if found is None:
        yield "compiler", False, "no C++ compiler; install one (e.g. apt install g++) or set CXX"
        return
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout.splitlines()
    yield "compiler", True, f"{found}: {version[0] if version else 'unknown version'}"
    header = Path(native.python_include()) / "Python.h"
    here = header.is_file()
    yield "python headers", here, str(header) if here else f"no {header}; install them (e.g. apt install python3-dev)"


def _core() -> Iterator[Finding]:
    try:
        core = native.load()
        yield "native core", True, str(native.library_path())
        yield from _gpu_core(core)
    except (VtensorError, ImportError) as error:
        yield "native core", False, str(error)


def _gpu_core(core: Core) -> Iterator[Finding]:
    import torch

    if not torch.cuda.is_available():
        return
    try:
        found = look_at_gpu(core, torch.cuda.current_device())
        yield "gpu memory", True, "can be managed; an operation larger than the budget gets more while it runs"
        if found["integrated"]:
            yield "one memory", True, "the processor's too: nothing is copied, what is evicted is recomputed"
    except UnsupportedDeviceError as error:
        yield "gpu memory", False, str(error)
    cupy = importlib.util.find_spec("cupy") is not None
    yield "cupy", True, "its pools are the source of chunks" if cupy else "not installed: chunks are the core's own"


_LOOKS: tuple[Callable[[], Iterator[Finding]], ...] = (_python, _kernel, _memory, _torch, _compiler, _core)
