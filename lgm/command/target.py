"""What a command of ``lgm`` computes for: options, and the trace and the device they mean.

Covers: ``--gpu``, ``--batch``, ``--link`` and the like, ``--budget`` where a command has it.
Leaves: the commands (``cli``), GPUs by name and what an iteration takes there (``fitting.gpus``).
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import get_args

from ..errors import LgmError
from ..fitting.gpus import GPUS, Gpu, Numbers, on_gpu
from ..iteration.lifetimes import analyze_lifetimes
from ..records import codec
from ..records.device import ASSUMED_LINK, HOST_COSTS, Device
from ..records.model import Trace
from ..records.units import format_bytes, format_speed, parse_bytes, parse_share, parse_speed, share_of

__all__ = ["ASSUMED", "add_options", "device_of", "gpu_of", "has_one_memory", "trace_of"]

ASSUMED = format_speed(ASSUMED_LINK)
_NUMBERS: Numbers = "fp32"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that all commands share."""
    add = parser.add_argument
    add(
        "--device",
        choices=["gpu", "host"],
        default="gpu",
        help="gpu: copies have their own engines; host: they share processors with computing (default: %(default)s)",
    )
    add(
        "--tax",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="computing time lost for each byte copied, in seconds per byte (default: none)",
    )
    add("--gpu", choices=sorted(GPUS), help="estimate that GPU, by arithmetic, from a trace of a processor")
    add(
        "--numbers",
        choices=get_args(Numbers),
        default=_NUMBERS,
        help="with --gpu: the number format (default: fp32)",
    )
    add("--batch", type=int, default=1, metavar="N", help="with --gpu: a batch N times as large as the recorded one")
    add("--link", help=f"copy speed in each direction (default: the GPU's, or {ASSUMED})")
    add("--link-out", metavar="SPEED", help="copy speed to the host, if it differs from --link")
    add("--link-in", metavar="SPEED", help="copy speed to the device, if it differs from --link")
    add(
        "--latency",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="fixed cost of each copy, in seconds (default: none)",
    )


def gpu_of(options: argparse.Namespace) -> Gpu | None:
    """The GPU asked for, at the end of the link asked for."""
    if options.gpu is None:
        return None
    gpu = GPUS[options.gpu]
    if gpu.link == 0 and any((options.link, options.link_out, options.link_in)):
        raise LgmError(f"{gpu.title}: it shares the processor's memory, so nothing is copied; leave --link out")
    return gpu if options.link is None else replace(gpu, link=parse_speed(options.link, "--link"))


def has_one_memory(options: argparse.Namespace) -> bool:
    """Whether nothing can be copied out of the way there."""
    gpu = gpu_of(options)
    return gpu is not None and gpu.link == 0


def trace_of(options: argparse.Namespace) -> Trace:
    """As recorded, or as it would be on the GPU asked for.

    Raises
    ------
    LgmError
        If the file is no trace, or the options do not go together.
    """
    trace = codec.load_trace(options.trace)
    gpu = gpu_of(options)
    if gpu is None:
        if options.batch != 1 or options.numbers != _NUMBERS:
            raise LgmError("--batch and --numbers need --gpu")
        return trace
    if options.device == "host":
        raise LgmError("--device host means a processor, and --gpu a GPU: give one of them")
    trace = on_gpu(trace, gpu, options.numbers, options.batch)
    print(f"  {gpu.title}, {options.numbers}, times by arithmetic (lgm/fitting/gpus.py)")
    return trace


def device_of(options: argparse.Namespace, trace: Trace) -> Device:
    """With the budget asked for; the peak, where a command has no such option.

    Raises
    ------
    ValueError
        For a size or a speed that is none, naming the option.
    LgmError
        For a budget of less than a chunk.
    """
    chunks, budget = analyze_lifetimes(trace).peak, getattr(options, "budget", None)
    if budget is not None:
        share = parse_share(budget, "--budget")
        chunks = share_of(chunks, share) if share is not None else parse_bytes(budget, "--budget") // trace.chunk_bytes
    if chunks < 1:
        raise LgmError(f"--budget {budget} holds not one chunk of {format_bytes(trace.chunk_bytes)}")
    gpu = gpu_of(options)
    link = parse_speed(options.link or ASSUMED_LINK, "--link") if gpu is None else gpu.copies
    out, back = (
        parse_speed(given, name) if given else link
        for name, given in (("--link-out", options.link_out), ("--link-in", options.link_in))
    )
    costs = HOST_COSTS if options.device == "host" else {}
    return Device(chunks, out, back, latency=options.latency, tax=options.tax, **costs)
