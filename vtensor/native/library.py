"""Builds the native core on first use and loads it.

Covers: finding the sources, the compiler and torch's headers; one build per torch version and source hash. A folder is
compiled as one unit: its files share their headers, which cost the compiler far more than what is in them.
Leaves: where builds are kept, and whether they may be trusted (``cache``); everything the core does (``kernels/``). The
core is compiled here, and not shipped as a binary, because it includes torch's C++ headers and so fits exactly one
torch build; that takes half a minute, once (``vtensor build`` does it ahead of time).

Environment: ``CXX`` (the compiler), ``CXXFLAGS`` (what it is given beside ours).
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import cast

from lgm.progress import Bar

from ..errors import BuildError
from ..logs import say
from .cache import cache_dir, check_ours, is_whole, make_private
from .core import Core
from .cuda_headers import cuda_include, how_to_get_them

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

_NAME = "_vtensor_native"
_SCRATCH = "building-"  # folders beside the build
_FLAGS = ["-O2", "-fPIC", "-fvisibility=hidden", "-DNDEBUG"]  # no -Werror: compilers will warn of more
_STANDARD = "-std=c++20"  # behind all others: conda's compilers set an older one
_SEAMS = ("python", "torch")  # folders whose files include Python's or torch's headers
_SECONDS = 60.0  # of one core for all of it (measured: g++ 12 on an Intel Xeon; each file by itself: 140)
_LONGEST = 20.0  # seconds for the unit that takes longest
_SYSTEM = Path("/usr/include")  # where Debian's toolkit is; given to the compiler, it would not find C's headers
_CUDA = "cuda"  # files with this in their names are compiled only for a torch that was built with CUDA


def sources_dir() -> Path:
    """Folder of the C++ sources: inside the installed package, or beside it in a checkout."""
    here = Path(__file__).resolve().parent.parent
    for candidate in (here / "kernels", here.parent / "kernels"):
        if (candidate / "device" / "driver.h").is_file():
            return candidate
    raise BuildError(f"the C++ sources of vtensor are missing beside {here}; reinstall the package")


def compiler() -> str | None:
    """Path of the C++ compiler: ``$CXX``, else g++, c++ or clang++; None if there is none.

    Raises
    ------
    BuildError
        If ``$CXX`` names none.
    """
    if asked := os.environ.get("CXX"):
        if (found := shutil.which(asked)) is None:
            raise BuildError(f"CXX={asked}: there is no such program (one name or path, without arguments)")
        return found
    return next(filter(None, map(shutil.which, ("g++", "c++", "clang++"))), None)


def flags() -> list[str]:
    """What the compiler is given: ours, then ``$CXXFLAGS``, and the standard that the sources are written in."""
    return [*_FLAGS, *shlex.split(os.environ.get("CXXFLAGS", "")), _STANDARD]


def is_cuda(source: Path) -> bool:
    """Whether it is compiled only for a torch that was built with CUDA."""
    return _CUDA in source.stem


def is_seam(source: Path) -> bool:
    """Whether its folder includes Python's or torch's headers."""
    return source.parent.name in _SEAMS


def _cuda_include() -> list[Path]:
    """CUDA's headers, if torch needs them."""
    import torch

    if torch.version.cuda is None:
        return []
    found = cuda_include(torch.version.cuda)
    if found is None:
        raise BuildError(
            f"torch {torch.__version__} uses CUDA, and CUDA's headers (cuda.h) were found nowhere: "
            f"{how_to_get_them(torch.version.cuda)}"
        )
    return [found]


def torch_include() -> list[Path]:
    """Folders of the installed torch's headers."""
    import torch

    root = Path(torch.__file__).parent / "include"
    return [root, root / "torch" / "csrc" / "api" / "include"]


def python_include() -> str:
    """Folder of Python's own headers."""
    return sysconfig.get_path("include")


def library_path() -> Path:
    """Where the compiled core for this torch, this Python and these sources is kept."""
    import torch

    digest = hashlib.sha256(" ".join(flags()).encode())
    for source in sorted(sources_dir().glob("*/*.[ch]*")):
        digest.update(f"{source.parent.name}/{source.name}".encode() + source.read_bytes())
    # A torch built here or for a Jetson does not say by its version whether it was built with CUDA.
    built = f"torch{torch.__version__}-cuda{torch.version.cuda or 'none'}-abi{int(torch.compiled_with_cxx11_abi())}"
    tag = f"{built}-{sys.implementation.cache_tag}-{digest.hexdigest()[:16]}"
    return cache_dir() / tag / (_NAME + (sysconfig.get_config_var("EXT_SUFFIX") or ".so"))


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(
            "vtensor could not compile its native core.\n"
            f"  command: {' '.join(command)}\n{done.stderr.strip()[-4000:]}\n"
            "  'vtensor doctor' checks the compiler and the headers."
        )


def units(sources: list[Path], workers: int) -> list[list[Path]]:
    """What is compiled together: the files of a folder, those with the big headers first.

    A folder with big headers is cut where many cores would wait for it.
    """
    folders: dict[tuple[bool, str, bool], list[Path]] = {}
    for source in sorted(sources):
        folder = source.parent.name
        folders.setdefault((not is_seam(source), folder, is_cuda(source)), []).append(source)
    found = []
    for (plain, _, _), files in sorted(folders.items()):
        parts = 1 if plain else min(max(workers // 4, 1), len(files))
        found += [files[part::parts] for part in range(parts)]
    return found


def unit_text(files: list[Path]) -> str:
    """What the compiler is given, with the folder of the sources among those it looks into."""
    return "".join(f'#include "{file.parent.name}/{file.name}"\n' for file in files)


def build(target: Path) -> None:
    """Compile the core into `target`, all files of it or none. Pre: its directory is there.

    Raises
    ------
    BuildError
        If there is no compiler, or it refuses; the message holds its output.
    """
    import torch

    cxx = compiler()
    if cxx is None:
        raise BuildError(
            "vtensor needs a C++20 compiler and found none. Install one, e.g. 'apt install g++', or set CXX."
        )
    given = [*flags(), f"-I{sources_dir()}", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    cuda = _cuda_include()
    if cuda:
        given.append("-DVT_CUDA")
    include = [f"-isystem{path}" for path in (*torch_include(), python_include(), *cuda) if path != _SYSTEM]
    with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=target.parent) as scratch:

        def compile_one(number: int, files: list[Path]) -> str:
            unit = Path(scratch) / f"{number}.cpp"
            unit.write_text(unit_text(files))
            seam = is_seam(files[0]) or is_cuda(files[0])
            _run([cxx, *given, *(include if seam else []), "-c", str(unit), "-o", f"{unit}.o"])
            return f"{unit}.o"

        sources = [source for source in sources_dir().glob("*/*.cpp") if cuda or not is_cuda(source)]
        workers = max(2, len(os.sched_getaffinity(0)))  # as many as this process may use
        together = units(sources, workers)
        progress = _begin_to_say(len(sources), workers)
        objects = []
        with ThreadPoolExecutor(workers) as pool:
            for made in pool.map(compile_one, range(len(together)), together):
                objects.append(made)
                progress("compiling", len(objects) / len(together))
        library = str(Path(scratch) / "linked.so")
        torch_lib = str(Path(torch.__file__).parent / "lib")
        libraries = ["-ltorch_cpu", "-lc10", "-ldl", *(["-ltorch_cuda", "-lc10_cuda"] if cuda else [])]
        _run([cxx, "-shared", *objects, "-o", library, f"-L{torch_lib}", *libraries, f"-Wl,-rpath,{torch_lib}"])
        Path(library).chmod(0o700)
        with Path(library).open("rb") as written:
            os.fsync(written.fileno())  # else it may be there and cut off, after the power failed
        Path(library).replace(target)
    say(f"vtensor: compiled, kept in {target.parent}")


def _begin_to_say(files: int, workers: int) -> Bar:
    import torch

    seconds = max(_SECONDS / workers, _LONGEST)
    say(
        f"vtensor: compiling the native core for torch {torch.__version__}, once: {files} files, about "
        f"{seconds:.0f} seconds with {workers} at a time ..."
    )
    return Bar()


def _build_once(target: Path) -> None:
    """Two processes, one build."""
    make_private(target.parent)
    check_ours(target)  # others could exchange what is compiled before it is linked
    with (target.parent / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("vtensor: waiting for another process, which compiles the native core ...")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_whole(target):
            for cut_off in target.parent.glob(_SCRATCH + "*"):  # of a build that was killed
                shutil.rmtree(cut_off, ignore_errors=True)
            build(target)


@lru_cache(maxsize=1)
def load() -> Core:
    """The native core, a module, compiled first if there is no build for this torch yet.

    Raises
    ------
    BuildError
        If it cannot be compiled, kept, or loaded, or if others could have changed it.
    """
    import torch  # noqa: F401  (its libraries must be loaded before ours)

    target = library_path().resolve()
    try:
        if not is_whole(target):
            _build_once(target)
        check_ours(target)
    except OSError as error:
        raise BuildError(
            f"the compiled core cannot be kept in {cache_dir()} ({error.strerror}"
            f"{f': {error.filename}' if error.filename else ''}); set VTENSOR_CACHE to a directory that you can write "
            "to, with room for 20 MB, or name one by 'vtensor build --to'"
        ) from None
    spec = importlib.util.spec_from_file_location(_NAME, target)
    assert spec is not None and spec.loader is not None  # the suffix is one of an extension
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        raise BuildError(f"cannot load {target} ({error}); {_remedy(str(error))}") from None
    return cast(Core, module)


def _remedy(error: str) -> str:
    """For a build that the dynamic linker refuses."""
    if "failed to map segment" in error:
        return "its file system may not run what lies there (noexec): set VTENSOR_CACHE to a directory of another one"
    if "GLIBCXX" not in error and "CXXABI" not in error:
        return "delete it to build again"
    return (
        "its compiler was newer than the C++ library that this Python loads, as may be in an environment of "
        "conda's: 'conda install -c conda-forge libstdcxx-ng' updates that; or set CXX to an older compiler, and "
        "delete the file"
    )
