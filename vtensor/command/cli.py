"""The command ``vtensor``: run, fit, demo, doctor, build.

Covers: the command line, and turning errors of ours into one line and exit code 2.
Leaves: what each command does (``commands``).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from lgm.fitting import GPUS, Numbers

from .. import __version__
from ..errors import VtensorError
from ..logs import say
from ..settings.options import Device, Granularity, Options, Oversize, Policy, Recompute
from . import commands

__all__ = ["main"]

_DESCRIPTION = """\
Train PyTorch models that do not fit in memory, within a budget in bytes, bit-identical to plain PyTorch.

  vtensor run --budget 4GiB train.py --epochs 3     an unmodified script under a budget
  vtensor run --budget 50% -m package.train --lr 1  half of the device's memory, a module instead of a file
  vtensor run --budget 2GiB --spill-dir /scratch train.py
                                                    what does not fit goes to disk instead of RAM
  vtensor fit train.py                              what a step would take in less memory
  vtensor fit --device cpu --gpu rtx3060-laptop train.py
                                                    the same for a device that you do not have
  vtensor demo                                      see it work, compared with plain PyTorch
  vtensor doctor                                    what is here, what is missing
  vtensor build --to /opt/vtensor                   compile the native core ahead of time, for an image or a cluster

In your own script it is one line:  import vtensor; vtensor.enable(budget="4GiB")
"""

_RUN = """\
Runs SCRIPT as 'python SCRIPT ARGS...' would: same sys.argv, same __main__, same exit code. A summary of what was held
and moved is printed on stderr at the end. vtensor's options go before SCRIPT or -m; all that follows is the script's.
"""

_FIT = """\
Runs SCRIPT without a budget until its iteration times agree, then for a few more iterations at half of its peak, to see
how fast this machine copies; then ends it as sys.exit() would, and says what a step would take under several budgets.
With --gpu it also estimates, by arithmetic, a device that you do not have, in the memory sizes it comes with.
"""

_BUILD = """\
Compiles the native core for the installed torch, as the first enable() would, and prints its path. For container
images and clusters: build it once with --to, and set VTENSOR_CACHE to that directory where it is used.
"""

_EPILOG = """\
Environment: VTENSOR_BUDGET (the default budget), VTENSOR_DISABLE=1 (run as if vtensor were not there), VTENSOR_LOG=info
(report what is done), VTENSOR_CACHE (where the compiled core is kept), CXX and CXXFLAGS (the compiler). For debugging:
VTENSOR_VERIFY=replay, VTENSOR_STRICT=1, VTENSOR_ANALYSIS=here; on a GPU VTENSOR_HOST_IN_PLACE=1,
VTENSOR_INTEGRATED=1 (docs/environment.md says what each does).
"""


_USAGE = "vtensor {} [OPTIONS] (SCRIPT | -m MODULE) [ARGS ...]"
_FOR_EXAMPLE = {"run": "--budget 4GiB ", "fit": ""}


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("vtensor", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=raw)
    parser.add_argument("--version", action="version", version=f"vtensor {__version__}")
    parsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def command(name: str, text: str, description: str = "", **more: Any) -> argparse.ArgumentParser:
        described = description or f"{text[0].upper()}{text[1:]}.".replace("%%", "%")  # which help= alone formats
        # No abbreviations: what a script's own options begin with is none of ours.
        return parsers.add_parser(
            name, help=text, description=described, formatter_class=raw, allow_abbrev=False, **more
        )

    def with_script(name: str, text: str, description: str) -> argparse.ArgumentParser:
        return command(name, text, description, usage=_USAGE.format(name), epilog=_EPILOG)

    run = with_script("run", "run an unmodified script under a budget", _RUN)
    _add_options_of_run(run)
    fit = with_script("fit", "what a script's step would take in less memory", _FIT)
    _add_options_of_fit(fit)
    for sub in (run, fit):
        _add_script(sub)
    demo = command("demo", "train two real models on the CPU at 40 %% of their peak, in turns with plain PyTorch")
    demo.add_argument("--fraction", type=float, default=0.4, help="budget as a fraction of the peak (default: 0.4)")
    demo.add_argument("--steps", type=int, default=8, help="training steps per model (default, and at least: 8)")

    doctor = command(
        "doctor", "check the machine, torch, the compiler and the native core; exit code 1 if one is missing"
    )
    build = command("build", "compile the native core ahead of time", _BUILD)
    build.add_argument("--to", metavar="DIR", help="where to keep it (default: the cache, ~/.cache/vtensor)")
    does = {run: commands.run, fit: commands.fit, demo: commands.demo, doctor: commands.doctor, build: commands.build}
    for sub, do in does.items():
        # Mistakes are answered with the usage of the command they are in.
        sub.set_defaults(fail=sub.error, do=do)
    return parser


def _add_options_of_run(run: argparse.ArgumentParser) -> None:
    usual = Options()
    run.add_argument(
        "--budget",
        metavar="SIZE",
        help="bytes, '4GiB', or a share of the device's memory such as 50%% (default: VTENSOR_BUDGET, or what is "
        "free minus a reserve)",
    )
    run.add_argument(
        "--device",
        choices=get_args(Device),
        default=usual.device,
        help="whose tensors to manage (default: %(default)s, which is cuda if torch sees a GPU, else cpu)",
    )
    run.add_argument(
        "--chunk",
        metavar="SIZE",
        help="unit in which tensors are moved; smaller ones are slower (default: 2MiB; up to 16MiB on a GPU)",
    )
    run.add_argument("--min-size", metavar="SIZE", help="smallest managed tensor (default: half a chunk)")
    run.add_argument(
        "--host",
        metavar="SIZE",
        help="limit for evicted data in host memory (default: four fifths of RAM, less under ulimit -v, or what is "
        "free in --spill-dir)",
    )
    run.add_argument("--spill-dir", metavar="DIR", help="keep evicted data in a file here instead of in RAM")
    run.add_argument(
        "--policy",
        choices=get_args(Policy),
        default=usual.policy,
        help="what is evicted. plan: by a plan made from recorded iterations; lru: the least recently used; "
        "size_staleness: the largest bytes x time unused; delta: the same, copied or dropped, whichever is quicker "
        "(default: %(default)s)",
    )
    run.add_argument(
        "--recompute",
        choices=get_args(Recompute),
        default=usual.recompute,
        help="auto: plans recompute what is cheaper to recompute than to copy; never: everything is copied; only: "
        "nothing is copied (default: %(default)s)",
    )
    run.add_argument("--plan", metavar="FILE", help="follow a plan made by 'lgm analyze' instead of making one")
    run.add_argument("--save-trace", metavar="FILE", help="write the last whole iteration, for the 'lgm' command")
    run.add_argument(
        "--report",
        metavar="HTML",
        help="write a page about the run: memory, copies, iterations (with several processes: run.rank0.html, ...)",
    )
    run.add_argument(
        "--watch",
        action="store_true",
        help="report the newest iteration on stderr, every two seconds; every ten if that is not a terminal",
    )
    run.add_argument(
        "--granularity",
        choices=get_args(Granularity),
        default=usual.granularity,
        help="evict as many chunks as are needed, or whole tensors (default: %(default)s)",
    )
    run.add_argument(
        "--oversize",
        choices=get_args(Oversize),
        default=usual.oversize,
        help="an operation that needs more than the budget: borrow uses host memory in place, slowly (on a GPU: "
        "exceeds the budget while it runs); raise raises an error (default: %(default)s)",
    )
    run.add_argument("--link", metavar="SPEED", help="emulate a slow bus, e.g. 6GB/s each way")


def _add_options_of_fit(fit: argparse.ArgumentParser) -> None:
    fit.add_argument(
        "--gpu",
        choices=list(GPUS),
        help="also estimate this device, by arithmetic, from times of a processor (--device cpu)",
    )
    fit.add_argument("--numbers", choices=get_args(Numbers), help="what --gpu computes in (default: fp32)")
    fit.add_argument("--device", choices=get_args(Device), default=Options().device, help="as in 'vtensor run'")
    fit.add_argument("--chunk", metavar="SIZE", help="as in 'vtensor run'")
    fit.add_argument("--min-size", metavar="SIZE", help="as in 'vtensor run'")
    fit.add_argument("--save-trace", metavar="FILE", help="write the iteration that was measured")


def _add_script(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-m",
        dest="module",
        nargs=argparse.REMAINDER,  # options that follow are the module's, as with python -m
        help="MODULE ARGS...: run a module, as python -m would",
    )
    parser.add_argument(
        "script", nargs=argparse.REMAINDER, metavar="SCRIPT ARGS...", help="the script and its arguments"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given and Path(given[0]).suffix == ".py":
        say(f"vtensor: did you mean 'vtensor run --budget 4GiB {' '.join(given)}'?")
        return 2
    options, unknown = _parser().parse_known_args(given)
    if unknown:
        options.fail(f"unrecognized arguments: {' '.join(unknown)}")
    if options.command in ("run", "fit") and not options.module and not commands.script_of(options):
        if str(options.budget if options.command == "run" else "").endswith(".py"):
            options.fail(f"--budget takes a size: vtensor run --budget 4GiB {options.budget}")
        options.fail(f"which script? e.g. vtensor {options.command} {_FOR_EXAMPLE[options.command]}train.py")
    try:
        code: int = options.do(options)
        return code
    except VtensorError as error:
        say(f"vtensor: {error}")
        return 2
    except KeyboardInterrupt as interrupt:
        if commands.was_shown(interrupt):
            raise
        say("vtensor: interrupted")
        return 130  # as a shell says it


if __name__ == "__main__":
    sys.exit(main())
