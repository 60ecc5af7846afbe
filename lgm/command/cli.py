"""The command ``lgm``: analyze, simulate, validate, show, fit, checkpoints, harmony, report, snapshot, perfetto.

Covers: arguments, progress, turning errors into one line and exit code 2.
Leaves: which device is meant (``target``), the work to the module of each command.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

from ..analysis import Recompute, analyze
from ..checkpoints.segments import ways_of
from ..errors import LgmError
from ..fitting.fits import by_size, by_way
from ..harmony import command as harmony_command
from ..progress import Bar
from ..records import codec
from ..records.model import Trace
from ..records.units import format_bytes, format_seconds
from ..reports import report
from ..reports.page import write_page
from ..reports.snapshot import write_snapshot
from ..switches import Switches
from ..timing.simulate import run_on_demand
from ..validation import validate
from . import target

__all__ = ["main"]

_DESCRIPTION = """\
The Layered Graph Model: from one recorded training iteration to a plan for a small memory. Needs NumPy only; run it on
the training machine or anywhere else.

  vtensor run --budget 4GiB --save-trace trace.npz train.py     record (with vtensor, where torch is)
  lgm show trace.npz                                            what the iteration needs
  lgm fit trace.npz --gpu rtx3060-laptop                        what a step takes at each budget
  lgm analyze trace.npz --budget 4GiB --link 12GB/s -o plan.npz make a plan, and predict its step time
  lgm report plan.npz -o plan.html                              see it, in a browser
  vtensor run --budget 4GiB --plan plan.npz train.py            run by it
"""


def _analyze(options: argparse.Namespace) -> int:
    trace = target.trace_of(options)
    switches = Switches(**{name: getattr(options, name) for name in Switches.choices()})
    plan = analyze(trace, target.device_of(options, trace), switches, Bar(), recompute=_recompute(options))
    if options.output is not None:
        codec.save_plan(plan, options.output)
        print(f"wrote {options.output}")
    print(report.summary(plan))
    return 0


def _recompute(options: argparse.Namespace) -> Recompute:
    """As asked for; nothing is copied on a device of one memory."""
    asked: Recompute | None = options.recompute
    if not target.has_one_memory(options):
        return asked or "auto"
    if asked not in (None, "only"):
        raise LgmError(f"{options.gpu} has one memory: copying frees nothing there, so --recompute {asked} cannot be")
    return "only"


def _simulate(options: argparse.Namespace) -> int:
    if target.has_one_memory(options):
        raise LgmError(f"{options.gpu} has one memory, and these plans only copy: see 'lgm analyze', 'lgm fit'")
    trace = target.trace_of(options)
    device = target.device_of(options, trace)
    bar = Bar()
    rows: list[tuple[str, Callable[[], float]]] = [
        ("plan, chunks", lambda: analyze(trace, device, None, bar).prediction.step_seconds),
        (
            "plan, whole tensors",
            lambda: analyze(trace, device, Switches(granularity="tensor"), bar).prediction.step_seconds,
        ),
        ("on demand, chunks", lambda: run_on_demand(trace, device).step_seconds),
        ("on demand, whole tensors", lambda: run_on_demand(trace, device, whole=True).step_seconds),
    ]
    print(
        f"  budget {format_bytes(device.budget_chunks * trace.chunk_bytes)}, "
        f"computing alone {format_seconds(trace.seconds)}"
    )
    for nth, (name, seconds) in enumerate(rows):
        try:
            took = seconds()
        except LgmError as error:  # whole tensors may not fit where what is used of them does
            if nth == 0:
                raise
            print(f"  {name:<26} {'-':>10}   {error}")
        else:
            print(f"  {name:<26} {format_seconds(took):>10}   {took / trace.seconds:.3f} x")
    return 0


def _validate(options: argparse.Namespace) -> int:
    validate(codec.load_plan(options.plan))
    print(f"{options.plan}: every rule holds")
    return 0


def _show(options: argparse.Namespace) -> int:
    plan = codec.load(options.file)
    if isinstance(plan, Trace):
        if options.picture or options.graph:
            raise LgmError("a picture or a graph needs a plan: make one with 'lgm analyze'")
        print(report.trace_summary(plan))
        return 0
    validate(plan)  # figures and pictures of a plan that breaks a rule would mean nothing
    print(report.summary(plan), report.table(plan, options.rows), sep="\n\n")
    if options.graph:
        print("\n" + report.graph(plan, options.graph))
    if options.picture is not None:
        report.draw(plan, options.picture)
        print(f"\nwrote {options.picture}")
    return 0


def _fit(options: argparse.Namespace) -> int:
    trace = target.trace_of(options)
    gpu = target.gpu_of(options)
    ways: tuple[Recompute, ...] = ("only",) if target.has_one_memory(options) else get_args(Recompute)
    print(by_way(trace, target.device_of(options, trace), Bar(), ways))
    assumed = [
        way for way, given in (("out", options.link_out), ("in", options.link_in)) if (given or options.link) is None
    ]
    if gpu is None and assumed:
        ways_in_words = "each way" if len(assumed) == 2 else assumed[0]
        print(f"  assumed: copies at {target.ASSUMED} {ways_in_words} (--link), computing as recorded (--gpu)")
    if gpu is not None and options.batch == 1:  # it looks for batches itself
        print("\n" + by_size(codec.load_trace(options.trace), gpu, options.numbers, Bar()))
    return 0


def _checkpoints(options: argparse.Namespace) -> int:
    trace = codec.load_trace(options.trace)
    ways = ways_of(trace)
    if options.output is not None:
        codec.save_plan(ways.best.plan, options.output)
        print(f"wrote {options.output}")
    print(report.checkpoints(trace, ways))
    return 0


def _harmony(options: argparse.Namespace) -> int:
    return harmony_command.run(options, Bar())


def _report(options: argparse.Namespace) -> int:
    write_page(codec.load(options.file), options.output)
    print(f"wrote {options.output}; open it in a browser")
    return 0


def _snapshot(options: argparse.Namespace) -> int:
    write_snapshot(codec.load_trace(options.trace), options.output)
    print(f"wrote {options.output}; open it at pytorch.org/memory_viz")
    return 0


def _perfetto(options: argparse.Namespace) -> int:
    plan = codec.load_plan(options.plan)
    validate(plan)
    report.perfetto(plan, options.output)
    print(f"wrote {options.output}; open it at ui.perfetto.dev")
    return 0


def _count(text: str) -> int:
    """A whole number of lines, or none."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} lines cannot be shown")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "lgm", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def command(name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        sub.set_defaults(run=run)
        return sub

    sub = command("analyze", _analyze, "make a plan for a budget, and predict its peak and step time")
    sub.add_argument("trace", help="a trace file (.npz)")
    sub.add_argument("--budget", required=True, help="bytes, '4GiB', or a share of the trace's peak such as 40%%")
    target.add_options(sub)
    sub.add_argument("-o", "--output", metavar="PLAN", help="write the plan")
    sub.add_argument(
        "--recompute",
        choices=get_args(Recompute),
        help="auto: recompute what is cheaper to recompute than to copy; never: copy everything; only: copy nothing; "
        "segments: run parts of the chain of layers again, as torch.utils.checkpoint does, in the least time "
        "(default: auto, or only if --gpu shares the processor's memory)",
    )
    meanings = Switches.meanings()
    for name, choices in Switches.choices().items():
        sub.add_argument(f"--{name}", choices=choices, default=choices[0], help=meanings[name])

    sub = command("simulate", _simulate, "predict step times with and without a plan")
    sub.add_argument("trace", help="a trace file (.npz)")
    sub.add_argument("--budget", required=True, help="bytes, '4GiB', or a share of the trace's peak such as 40%%")
    target.add_options(sub)

    sub = command("validate", _validate, "check a plan against its trace, rule by rule")
    sub.add_argument("plan", help="a plan file (.npz)")

    sub = command("show", _show, "describe a trace or a plan; with --picture, draw it")
    sub.add_argument("file", help="a trace or a plan (.npz)")
    sub.add_argument("--picture", metavar="PNG|SVG", help="memory over time and the three lanes (needs matplotlib)")
    sub.add_argument("--rows", type=_count, default=16, help="lines of the table (default: 16)")
    layers = "list N layers of the graph (default: 40)"
    sub.add_argument("--graph", type=_count, nargs="?", const=40, default=0, metavar="N", help=layers)

    sub = command("fit", _fit, "what a step takes at each budget: copying only, recomputing only, and both")
    sub.add_argument("trace", help="a trace file (.npz)")
    target.add_options(sub)

    sub = command("checkpoints", _checkpoints, "keep only the best layers of the forward pass, recompute the others")
    sub.add_argument("trace", help="a trace file (.npz)")
    sub.add_argument("-o", "--output", metavar="PLAN", help="write the plan: 'vtensor run --plan' trains by it")

    harmony_command.add_arguments(
        command("harmony", _harmony, "schedule packs of layers for weights that do not fit, on one device or several")
    )

    sub = command("report", _report, "write a page for a browser: memory by what it is for, copies, what is recomputed")
    sub.add_argument("file", help="a trace or a plan (needs plotly)")
    sub.add_argument("-o", "--output", default="report.html", metavar="HTML", help="default: report.html")

    sub = command("snapshot", _snapshot, "write a trace for torch's memory viewer, pytorch.org/memory_viz")
    sub.add_argument("trace", help="a trace file (.npz)")
    sub.add_argument("-o", "--output", default="snapshot.pickle", metavar="PICKLE", help="default: snapshot.pickle")

    sub = command("perfetto", _perfetto, "write the predicted iteration for ui.perfetto.dev")
    sub.add_argument("plan", help="a plan file (.npz)")
    sub.add_argument("-o", "--output", default="plan.json", metavar="JSON", help="default: plan.json")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        output = getattr(options, "output", None)
        if output is not None and not Path(output).absolute().parent.is_dir():
            raise LgmError(f"cannot write {output}: there is no such folder")  # before anything is computed for it
        run: Callable[[argparse.Namespace], int] = options.run
        return run(options)
    except BrokenPipeError:  # ... | head: whoever read has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except IsADirectoryError as error:
        print(f"lgm: {error.filename2 or error.filename} is a directory; name a file", file=sys.stderr)
        return 2
    except (LgmError, ValueError, OSError) as error:
        print(f"lgm: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
