"""``vtensor run``: an unmodified script under a budget, as ``python script.py`` would run it.

Covers: ``sys.argv``, ``sys.path``, ``__main__``, the exit code, a summary at the end.
Leaves: arguments of the command line (``cli``), the session (``session``).
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import importlib.machinery
import importlib.util
import os
import signal
import sys
import threading
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple

from ..errors import ConfigError
from ..logs import say
from ..planning.current_planner import keep_journal, of_each_session
from ..planning.traces import record, save_trace, size_of, write_if_possible
from ..reports.page import report
from ..reports.stats import memory_stats, memory_summary
from ..session.lifecycle import active_config, is_enabled
from ..settings.sizes import format_bytes

__all__ = ["NOTHING", "Wishes", "run_module", "run_script"]


class Wishes(NamedTuple):
    """What to write when the script has ended."""

    trace: str | None = None
    """Its last iteration, for ``lgm``."""
    report: str | None = None
    """A page about the run."""
    watch: bool = False
    """To see each iteration."""
    tell: Callable[[], None] | None = None
    """Called instead of all that is said otherwise."""


NOTHING = Wishes()


def run_script(path: str, arguments: list[str], wishes: Wishes = NOTHING) -> int:
    """Run the file `path` as ``__main__``; write what is wished for; return its exit code.

    ``-`` is what stands on the standard input; of a directory or a zip file its ``__main__.py`` is run.

    Raises
    ------
    ConfigError
        If the file cannot be read.
    """
    if path == "-":
        source = sys.stdin.buffer.read()
        sys.path[0:0] = [""]
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
    sys.path[0:0] = [str(Path(path).resolve().parent)]
    return _run(main, lambda: _compiled(source, whole), [path, *arguments], wishes)


def _compiled(source: bytes, path: str) -> CodeType:
    """By its own ``from __future__`` imports, and not by those of this file."""
    return compile(source, path, "exec", dont_inherit=True)


def _run_folder(path: str, arguments: list[str], wishes: Wishes) -> int:
    whole = os.path.abspath(path)  # noqa: PTH100 (as above)
    spec = importlib.machinery.PathFinder.find_spec("__main__", [whole])
    if spec is None or spec.origin is None or not hasattr(spec.loader, "get_code"):
        raise ConfigError(f"there is no __main__.py in {path!r}")
    main = _new_main(spec.origin)
    main.__spec__, main.__loader__, main.__package__ = spec, spec.loader, ""
    sys.path[0:0] = [whole]
    return _run(main, _code_of(spec.loader, "__main__"), [path, *arguments], wishes)


def run_module(name: str, arguments: list[str], wishes: Wishes = NOTHING) -> int:
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
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.__main__.".startswith(f"{error.name}."):
            raise ConfigError(f"{name!r} cannot be run, as its package imports a missing module: {error}") from error
        spec = None
    loader = spec.loader if spec is not None else None
    if spec is None or spec.origin is None or not isinstance(loader, importlib.machinery.SourceFileLoader):
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
    farewell = _Farewell(wishes)
    forget_wishes = of_each_session(partial(_begin_with, wishes), farewell.session_ends) if managed else None
    ending = _Ending()
    try:
        try:
            compiled = code()
        except SyntaxError as error:
            sys.excepthook(type(error), error.with_traceback(None), None)
            return 1
        exec(compiled, main.__dict__)
        ending.code = 0
        return 0
    except SystemExit as stop:
        ending.code = _exit_code(stop)
        return ending.code
    except BaseException as error:
        # As python shows it: without the frame of this launcher.
        shown = error.__traceback__.tb_next if error.__traceback__ is not None else None
        sys.excepthook(type(error), error.with_traceback(shown), shown)
        ending.interrupted = isinstance(error, KeyboardInterrupt)
        return 1
    finally:
        if forget_wishes is not None and os.getpid() == process:
            _wait_for_threads()
            forget_wishes()
            farewell.program_ends(ending.code)


def _begin_with(wishes: Wishes) -> None:
    """What a session must do from its beginning, for what is said in the end."""
    if wishes.trace is not None or wishes.report is not None:
        record()
    if wishes.report is not None or wishes.watch:
        journal = keep_journal()
        if wishes.watch:
            journal.watch()


def _wait_for_threads() -> None:
    """As python does at its end, before anything else: the script's other threads may still train."""
    wait = getattr(threading, "_shutdown", None)
    if wait is not None:
        with contextlib.suppress(KeyboardInterrupt):  # python waits no longer either
            wait()


def _write_report(path: str) -> str:
    report(path, Path(sys.argv[0]).name)
    return "open it in a browser"


class _Ending:
    """How the process ends: by the signal, as python does after Ctrl-C, so that a shell's loop ends with it."""

    def __init__(self) -> None:
        self.code = 1
        self.interrupted = False
        atexit.register(self._at_last)  # before the script's own, so after them

    def _at_last(self) -> None:
        _let_go_of_what_was_said()
        if self.interrupted:
            _flush()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)


def _flush() -> None:
    """What the script printed comes before what is said of it; it may have closed where it printed."""
    with contextlib.suppress(OSError, ValueError):
        if sys.stdout is not None:
            sys.stdout.flush()


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


class _Farewell:
    """What is said and written of a run: when the script ends its session, and when it ends itself.

    Then the session stays, as in a program that began one: a GPU may have no room for what would come back.
    """

    def __init__(self, wishes: Wishes) -> None:
        self._wishes, self._said = wishes, False

    def session_ends(self) -> None:
        """By the script; of one that managed nothing, as a script begins its own instead, nothing is said."""
        if memory_stats()["allocations"] > 0:
            self._say(code=1)

    def program_ends(self, code: int) -> None:
        if is_enabled():
            self._say(code)
        elif not self._said:
            files = [path for path in (self._wishes.trace, self._wishes.report) if path is not None]
            unwritten = "".join(f", and {path} was not written" for path in files)
            say(f"vtensor: the script turned vtensor off before it ended; no summary{unwritten}")

    def _say(self, code: int) -> None:
        wishes = self._wishes
        _flush()
        if wishes.trace is not None:
            write_if_possible(wishes.trace, lambda path: size_of(save_trace(path)))
        if wishes.report is not None:
            write_if_possible(wishes.report, _write_report)
        if wishes.tell is not None:
            wishes.tell()
        else:
            _sum_up(code)
        self._said = True


def _sum_up(code: int) -> None:
    managed = memory_stats()["allocations"] > 0
    if managed or code == 0:  # a usage error of the script needs no table behind it
        say(memory_summary())
    if not managed and code == 0:
        where = "GPU; for tensors of the CPU pass --device cpu" if active_config().device == "cuda" else "CPU"
        say(
            f"vtensor: nothing was managed: this process made no tensor of {format_bytes(active_config().min_size)} or "
            f"more on the {where}. Processes that a script starts have no session until they call vtensor.enable() "
            "(spawned ones, not forked); or start each with 'vtensor run' (torchrun ... -m vtensor run "
            "--budget 4GiB train.py)"
        )
