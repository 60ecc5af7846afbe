"""``vtensor run``: an unmodified script under a budget, as ``python script.py`` would run it.

Covers: ``sys.argv``, ``sys.path``, ``__main__``, the exit code, a summary at the end.
Leaves: arguments of the command line (``cli``), the session (``session``).
"""

from __future__ import annotations

import builtins
import importlib.machinery
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import CodeType, ModuleType

from lgm import LgmError

from .config import format_bytes
from .errors import ConfigError
from .planning import save_trace
from .session import active_config, disable, is_enabled
from .stats import memory_stats, memory_summary

__all__ = ["run_module", "run_script"]


def run_script(path: str, arguments: list[str], trace: str | None = None) -> int:
    """Run the file `path` as ``__main__``; write its last iteration to `trace`; return its exit code.

    Raises
    ------
    ConfigError
        If the file cannot be read.
    """
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the script {path!r}: {error.strerror}") from None
    main = _new_main(path)
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    sys.path[0:0] = [str(Path(path).resolve().parent)]
    return _run(main, lambda: compile(source, path, "exec"), [path, *arguments], trace)


def run_module(name: str, arguments: list[str], trace: str | None = None) -> int:
    """Run the module `name` as ``python -m name`` would; else as :func:`run_script`.

    Raises
    ------
    ConfigError
        If there is no such module, or it has no Python source.
    """
    sys.path[0:0] = [str(Path.cwd())]
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ModuleNotFoundError:
        spec = None
    loader = spec.loader if spec is not None else None
    if spec is None or spec.origin is None or not isinstance(loader, importlib.machinery.SourceFileLoader):
        raise ConfigError(f"no module named {name!r} that can be run")
    main = _new_main(spec.origin)
    main.__spec__ = spec
    main.__package__ = spec.parent
    main.__loader__ = loader
    source_loader = loader

    def code() -> CodeType:
        found = source_loader.get_code(spec.name)
        assert found is not None  # a source loader has code
        return found

    return _run(main, code, [spec.origin, *arguments], trace)


def _new_main(path: str) -> ModuleType:
    main = ModuleType("__main__")
    main.__file__ = path
    main.__dict__.update(__builtins__=builtins, __annotations__={}, __cached__=None)
    return main


def _run(main: ModuleType, code: Callable[[], CodeType], argv: list[str], trace: str | None) -> int:
    sys.argv[:] = argv
    sys.modules["__main__"] = main  # for good: pickling and spawned workers look the script's names up there
    process, managed = os.getpid(), is_enabled()  # VTENSOR_DISABLE may have kept it off
    try:
        try:
            compiled = code()
        except SyntaxError as error:
            traceback.print_exception(type(error), error, None)
            return 1
        exec(compiled, main.__dict__)
        return 0
    except SystemExit as stop:
        return _exit_code(stop)
    except BaseException as error:
        # As python prints it: without the frame of this launcher.
        shown = error.__traceback__.tb_next if error.__traceback__ is not None else None
        traceback.print_exception(type(error), error, shown)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    finally:
        if managed and os.getpid() == process:
            _say_goodbye(trace)


def _exit_code(stop: SystemExit) -> int:
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code
    print(stop.code, file=sys.stderr)
    return 1


def _say_goodbye(trace: str | None) -> None:
    if not is_enabled():
        print("vtensor: the script turned vtensor off before it ended; no summary", file=sys.stderr)
        return
    sys.stdout.flush()
    if trace is not None:
        try:
            saved = save_trace(trace)
            print(f"vtensor: wrote {trace}: {saved.operations} operations, {saved.tensors} tensors", file=sys.stderr)
        except (RuntimeError, OSError, LgmError) as error:
            print(f"vtensor: {trace} was not written: {error}", file=sys.stderr)
    print(memory_summary(), file=sys.stderr)
    if memory_stats()["allocations"] == 0:
        print(
            f"vtensor: nothing was managed: this process made no tensor of {format_bytes(active_config().min_size)} or "
            "more. Processes that a script starts have sessions of their own: call vtensor.enable() in them, or start "
            "each with 'vtensor run' (torchrun ... -m vtensor run --budget 4GiB train.py)",
            file=sys.stderr,
        )
    disable()
