"""What the commands of ``vtensor`` do.

Covers: mistakes that can be seen before a script runs for hours.
Leaves: how they are written (``cli``), the work to modules that are imported when it is asked for.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import tempfile
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..logs import say
from ..settings.environment import rank_of_several
from ..settings.options import Options

__all__ = ["build", "demo", "doctor", "fit", "run", "script_of", "was_shown"]


def run(options: argparse.Namespace) -> int:
    from .. import session
    from ..session import lifecycle

    _check_script(options)
    _check_can_write(options, "save_trace")
    _check_can_write(options, "report")
    if options.report is not None and importlib.util.find_spec("plotly") is None:
        raise ConfigError("--report needs plotly: pip install plotly")
    its_own = options.module[1:] if options.module else script_of(options)[1:]
    if options.budget is None and any(word.split("=")[0] == "--budget" for word in its_own):
        say("vtensor: arguments after the script are the script's own; vtensor's --budget comes before it")
    session.enable(
        options.budget, plan=options.plan, **{field.name: getattr(options, field.name) for field in fields(Options)}
    )
    files = [file for file in (options.save_trace, options.report) if file is not None]
    if files and not lifecycle.is_enabled():
        say(f"vtensor: {' and '.join(files)} will not be written while VTENSOR_DISABLE is set")
    return _launch(options, trace=options.save_trace, report=options.report, watch=options.watch)


def fit(options: argparse.Namespace) -> int:
    from .. import native, planning, session
    from ..planning import traces
    from ..session import lifecycle
    from ..settings.available import budget_of_its_own, free_memory, most_chunks, physical_memory
    from ..settings.sizes import parse_bytes
    from ..settings.which_device import choose_gpu, which_device
    from .fit import Measuring

    _check_script(options)
    _check_can_write(options, "save_trace")
    if options.numbers is not None and options.gpu is None:
        raise ConfigError("--numbers says what --gpu computes in: name a --gpu, too")
    device = which_device(options.device)
    if options.gpu is not None and device != "cpu":
        raise ConfigError("--gpu goes by the times of a processor: pass --device cpu, where the script runs there")
    if device == "cpu":  # all there is, or as much as there are mappings for
        budget = physical_memory()
        if options.chunk is not None:
            budget = min(budget, most_chunks() * parse_bytes(options.chunk, "chunk"))
    else:  # whose chunks are taken at once
        budget = budget_of_its_own(free_memory(device, choose_gpu()[0]))
    session.enable(
        budget,
        device=device,
        chunk=options.chunk,
        min_size=options.min_size,
        policy="lru",
        recompute="never",
    )
    if not lifecycle.is_enabled():
        raise ConfigError("'vtensor fit' has nothing to look at while VTENSOR_DISABLE is set; unset it")
    traces.record()
    measuring = Measuring(native.load(), options.gpu, options.numbers or "fp32", options.save_trace)
    planning.listen(measuring.note)
    with session.keeping_the_session():
        code = _launch(options, tell=measuring.tell)
    return code or int(not measuring.answered)


def _check_can_write(options: argparse.Namespace, option: str) -> None:
    """Before a script runs for hours, and goes elsewhere."""
    if (path := getattr(options, option)) is None:
        return
    name = f"--{option.replace('_', '-')}"
    if not path:
        raise ConfigError(f"{name} needs the name of a file")
    said, folder = f"{name}={path}", Path(path).resolve().parent
    if not folder.is_dir():
        raise ConfigError(f"{said}: there is no directory {Path(path).parent}")
    if Path(path).is_dir():
        raise ConfigError(f"{said} is a directory; name a file")
    try:
        tempfile.TemporaryFile(dir=folder).close()  # rights do not tell of everything
    except OSError as error:
        raise ConfigError(f"{said}: no file can be written in {folder}: {error.strerror}") from None
    absolute = os.path.abspath(path)  # noqa: PTH100 -- where the script goes does not matter then
    setattr(options, option, _of_this_process(absolute))


def _of_this_process(path: str) -> str:
    """Each of several processes writes a file of its own: run.html becomes run.rank1.html."""
    if (several := rank_of_several()) is None:
        return path
    stem, suffix = os.path.splitext(path)  # noqa: PTH122 -- a path is text here, as above
    return f"{stem}.rank{several[0]}{suffix}"


def _check_script(options: argparse.Namespace) -> None:
    """Before a session begins for it. Modules are looked for later: that may run code of theirs."""
    script = script_of(options)
    if script and script[0] != "-" and not Path(script[0]).exists():
        raise ConfigError(f"cannot read the script {script[0]!r}: there is no such file")
    if script and Path(script[0]).suffix == ".npz":
        raise ConfigError(f"{script[0]!r} is no script; if it is a recorded trace, 'lgm fit {script[0]}' looks into it")


def script_of(options: argparse.Namespace) -> list[str]:
    """It and its arguments; nothing where a module is to run."""
    given: list[str] = [] if options.module else options.script
    return given[1:] if given[:1] == ["--"] else given


def _launch(options: argparse.Namespace, **wishes: Any) -> int:
    from . import farewell, launcher

    if options.module:
        return launcher.run_module(options.module[0], options.module[1:], farewell.Wishes(**wishes))
    script = script_of(options)
    return launcher.run_script(script[0], script[1:], farewell.Wishes(**wishes))


def was_shown(interrupt: KeyboardInterrupt) -> bool:
    """Whether it ended the script, which was said then."""
    from . import launcher

    return launcher.was_shown(interrupt)


def demo(options: argparse.Namespace) -> int:
    from ..demo import demo as show

    return show(options.fraction, options.steps)


def doctor(_options: argparse.Namespace) -> int:
    from .doctor import report

    return report()


def build(options: argparse.Namespace) -> int:
    from .. import native

    if options.to == "":
        raise ConfigError("--to: no directory is named")
    if options.to is not None:
        os.environ["VTENSOR_CACHE"] = str(Path(options.to).absolute())
    native.load()
    print(native.library_path())
    if options.to is not None:
        print(f"where it is used, set VTENSOR_CACHE={os.environ['VTENSOR_CACHE']}")
    return 0
