"""``vtensor run``: an unmodified script under a budget, as ``python script.py`` would run it.

Covers: ``sys.argv``, ``sys.path``, ``__main__``, the exit code, how the process ends.
Leaves: arguments of the command line (``cli``), what is said at the end (``farewell``), the session (``session``).
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import importlib.machinery
import importlib.util
import marshal
import os
import sys
import threading
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any

from ..errors import ConfigError
from ..logs import say
from ..planning.current_planner import of_each_session
from ..session.lifecycle import is_enabled
from .farewell import Farewell, Wishes, begin_with

__all__ = ["run_module", "run_script", "was_shown"]

_HEAD_OF_PYC = 16  # bytes
_SHOWN = "_vtensor_has_shown_it"


def run_script(path: str, arguments: list[str], wishes: Wishes) -> int:
    """Run the file `path` as ``__main__``; write what is wished for; return its exit code.

    ``-`` is what stands on the standard input; of a directory or a zip file its ``__main__.py`` is run.

    Raises
    ------
    ConfigError
        If the file cannot be read.
    """
    if path == "-":
        source = sys.stdin.buffer.read()
        _first_on_path("")
        return _run(_new_main("<stdin>"), lambda: _compiled(source, "<stdin>"), [path, *arguments], wishes)
    if Path(path).is_dir() or zipfile.is_zipfile(path):
        return _run_folder(path, arguments, wishes)
    whole = os.path.abspath(path)  # noqa: PTH100 (as python says it: links are not followed)
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the script {path!r}: {error.strerror}") from None
    main = _new_main(whole)
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", whole)
    _first_on_path(str(Path(path).resolve().parent))
    return _run(main, lambda: _compiled(source, whole), [path, *arguments], wishes)


def _first_on_path(entry: str, *, always: bool = False) -> None:
    """In the place of the entry that python made for this command, which is none of the script's; where it was told to
    make none (``-P``), there is none but for what must be there `always`.
    """
    made = ("", os.path.realpath(os.curdir), os.path.dirname(os.path.realpath(sys.argv[0])))  # noqa: PTH120
    if not sys.flags.safe_path and sys.path and sys.path[0] in made:
        command = sys.path.pop(0)
        if (Path(command or ".") / __package__.partition(".")[0]).is_dir():  # from where this package is: a checkout
            sys.path.append(command)
    if always or not sys.flags.safe_path:
        sys.path.insert(0, entry)


def _compiled(source: bytes, path: str) -> CodeType:
    """By its own ``from __future__`` imports, and not by those of this file. Of a ``.pyc`` it has been already."""
    if path.endswith(".pyc"):
        if not source.startswith(importlib.util.MAGIC_NUMBER):
            raise RuntimeError("Bad magic number in .pyc file")
        code: CodeType = marshal.loads(source[_HEAD_OF_PYC:])
        return code
    return compile(source, path, "exec", dont_inherit=True)


def _run_folder(path: str, arguments: list[str], wishes: Wishes) -> int:
    whole = os.path.abspath(path)  # noqa: PTH100 (as above)
    spec = importlib.machinery.PathFinder.find_spec("__main__", [whole])
    if spec is None or spec.origin is None or not hasattr(spec.loader, "get_code"):
        raise ConfigError(f"there is no __main__.py in {path!r}")
    main = _new_main(spec.origin)
    main.__spec__, main.__loader__, main.__package__ = spec, spec.loader, ""
    _first_on_path(whole, always=True)
    return _run(main, _code_of(spec.loader, "__main__"), [path, *arguments], wishes)


def run_module(name: str, arguments: list[str], wishes: Wishes) -> int:
    """Run the module `name` as ``python -m name`` would; else as :func:`run_script`.

    Raises
    ------
    ConfigError
        If there is no such module, or it has no Python source.
    """
    if name.startswith("."):
        raise ConfigError(f"-m takes the whole name of a module, and {name!r} is relative")
    _first_on_path(str(Path.cwd()))
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.__main__.".startswith(f"{error.name}."):
            raise ConfigError(f"{name!r} cannot be run, as its package imports a missing module: {error}") from error
        spec = None
    loader = spec.loader if spec is not None else None
    in_c = isinstance(loader, importlib.machinery.ExtensionFileLoader)
    if spec is None or spec.origin is None or not spec.has_location or not hasattr(loader, "get_code") or in_c:
        raise ConfigError(f"no module named {name!r} that can be run")
    main = _new_main(spec.origin)
    main.__spec__ = spec
    main.__package__ = spec.parent
    main.__loader__ = loader
    return _run(main, _code_of(loader, spec.name), [spec.origin, *arguments], wishes)


def _code_of(loader: Any, name: str) -> Callable[[], CodeType]:
    def code() -> CodeType:
        found: CodeType = loader.get_code(name)
        return found

    return code


def _new_main(path: str) -> ModuleType:
    main = ModuleType("__main__")
    main.__file__ = path
    main.__dict__.update(__builtins__=builtins, __cached__=None)
    if sys.version_info < (3, 14):  # from then on they are made where somebody asks for them (PEP 649)
        main.__dict__.update(__annotations__={})
    return main


def _run(main: ModuleType, code: Callable[[], CodeType], argv: list[str], wishes: Wishes) -> int:
    sys.argv[:] = argv
    # For good: pickling and spawned workers look the script's names up there. What workers send back was made in their
    # __mp_main__, which multiprocessing takes for this process' __main__ when it is imported, as torch did before.
    sys.modules["__main__"] = sys.modules["__mp_main__"] = main
    process, managed = os.getpid(), is_enabled()  # VTENSOR_DISABLE may have kept it off
    farewell = Farewell(wishes)
    forget_wishes = of_each_session(partial(begin_with, wishes), farewell.session_ends) if managed else None
    exit_code = 1
    atexit.register(_let_go_of_what_was_said)  # before the script's own, so after them
    try:
        try:
            compiled = code()
        except SyntaxError as error:
            _show(error.with_traceback(None))
            return 1
        exec(compiled, main.__dict__)
        exit_code = 0
        return 0
    except SystemExit as stop:
        exit_code = _exit_code(stop)
        return exit_code
    except BaseException as error:
        _show(error)
        if isinstance(error, KeyboardInterrupt):
            _let_python_end(again := KeyboardInterrupt())
            raise again from None
        return 1
    finally:
        if forget_wishes is not None and os.getpid() == process:
            _wait_for_threads()
            forget_wishes()
            farewell.program_ends(exit_code)


def _wait_for_threads() -> None:
    """As python does at its end, before anything else: the script's other threads may still train."""
    wait = getattr(threading, "_shutdown", None)
    if wait is not None:
        with contextlib.suppress(KeyboardInterrupt):  # python waits no longer either
            wait()


def _show(error: BaseException) -> None:
    """As python does: without the frame of this launcher, and kept for who looks at it afterwards."""
    shown = error.__traceback__.tb_next if error.__traceback__ is not None else None
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error.with_traceback(shown), shown
    setattr(sys, "last_exc", error)  # noqa: B010 -- from Python 3.12 on
    if not hasattr(sys, "excepthook"):
        say("sys.excepthook is missing")
    hook = getattr(sys, "excepthook", sys.__excepthook__)
    try:
        hook(type(error), error, shown)
    except Exception as wrong:
        wrong.__context__ = None
        wrong.__traceback__ = wrong.__traceback__.tb_next if wrong.__traceback__ is not None else None
        say("Error in sys.excepthook:")
        sys.__excepthook__(type(wrong), wrong, wrong.__traceback__)
        say("\nOriginal exception was:")
        sys.__excepthook__(type(error), error, shown)


def _let_python_end(interrupt: KeyboardInterrupt) -> None:
    """By the signal, when all else is done, so that a shell's loop ends with it: as it does where an interrupt leaves
    the program. This one was shown.
    """
    hook = getattr(sys, "excepthook", sys.__excepthook__)

    def show_others(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if error is not interrupt:
            hook(kind, error, trace)

    setattr(interrupt, _SHOWN, True)
    sys.excepthook = show_others


def was_shown(interrupt: KeyboardInterrupt) -> bool:
    """Whether it ended the script, which was said then."""
    return hasattr(interrupt, _SHOWN)


def _let_go_of_what_was_said() -> None:
    """What a full disk did not take stays in stderr from Python 3.14 on, and would be why the process ends with 120."""
    with contextlib.suppress(ValueError, AttributeError):  # the script closed it, or put something else there
        try:
            sys.stderr.flush()
        except OSError:
            sys.stderr = None


def _exit_code(stop: SystemExit) -> int:
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code
    say(str(stop.code))
    return 1
