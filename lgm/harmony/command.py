"""``lgm harmony``: its arguments, and what it prints.

Covers: one call of the command. Leaves: errors and exit codes (``lgm.command.cli``).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import get_args

from ..errors import LgmError
from ..fitting.gpus import GPUS, Numbers, on_gpu
from ..records import ASSUMED_LINK, codec
from ..records.units import format_speed, parse_bytes, parse_speed
from .measured import is_measured, load_measured
from .profile import Profile
from .recorded import profile_of
from .report import perfetto, table
from .search import Found, find_schedule
from .tasks import Machine, Mode, Place

__all__ = ["add_arguments", "run"]

_LINK = format_speed(ASSUMED_LINK)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``lgm harmony``."""
    parser.add_argument("profile", help="a trace of one iteration without microbatches, or layers measured one by one")
    parser.add_argument("--samples", type=int, metavar="N", help="samples in the recorded iteration")
    parser.add_argument("--minibatch", type=int, metavar="N", help="samples in a training step (default: --samples)")
    parser.add_argument("--budget", required=True, help="memory of each device, e.g. 4GiB")
    parser.add_argument("--devices", type=int, default=1, metavar="N", help="devices that share the work (default: 1)")
    shared = f"speed of the host's link in each direction, shared by all devices (default: {_LINK})"
    parser.add_argument("--link", default=_LINK, help=shared)
    parser.add_argument("--own-links", action="store_true", help="each device has its own such link")
    parser.add_argument("--peer", metavar="SPEED", help="copy speed between devices (default: --link)")
    parser.add_argument("--optimizer-on", choices=get_args(Place), default="device", help="where weights are updated")
    parser.add_argument("--no-overlap", dest="overlap", action="store_false", help="copies wait for computing to end")
    parser.add_argument("--layers", type=int, default=32, metavar="N", help="layers to cut a model into (default: 32)")
    parser.add_argument("--gpu", choices=sorted(GPUS), help="estimate that GPU, by arithmetic")
    parser.add_argument("--numbers", choices=get_args(Numbers), help="with --gpu: the number format (default: fp32)")
    parser.add_argument("-o", "--output", metavar="JSON", help="write the fastest schedule for ui.perfetto.dev")


def run(options: argparse.Namespace, progress: Callable[[str, float], None]) -> int:
    """Search, print, write."""
    for name in ("samples", "minibatch", "devices", "layers"):
        if (count := getattr(options, name)) is not None and count < 1:
            raise LgmError(f"--{name} {count}: at least 1")
    if options.numbers is not None and options.gpu is None:
        raise LgmError("--numbers says what --gpu computes in: name a --gpu, too")
    profile, samples = _profile(options)
    link = parse_speed(options.link, "--link")
    machine = Machine(
        devices=options.devices,
        budget=float(parse_bytes(options.budget, "--budget")),
        link=link,
        peer=parse_speed(options.peer, "--peer") if options.peer else link,
        own_links=options.own_links,
        optimizer_on=options.optimizer_on,
        overlap=options.overlap,
    )
    modes: tuple[Mode, ...] = ("pipeline", "data") if options.devices > 1 else ("pipeline",)
    found: dict[Mode, Found] = {}
    refused: dict[Mode, LgmError] = {}
    for mode in modes:
        try:
            found[mode] = find_schedule(profile, machine, samples, mode, progress)
        except LgmError as error:
            refused[mode] = error
    progress("done", 1.0)
    if not found:
        raise refused[modes[0]]
    print(table(profile, machine, found, refused))
    if options.output is not None:
        fastest = min(found.values(), key=lambda each: each.outcome.seconds)
        perfetto(fastest.outcome, options.output)
        print(f"wrote {options.output}; open it at ui.perfetto.dev")
    return 0


def _profile(options: argparse.Namespace) -> tuple[Profile, int]:
    """And the samples of a step."""
    if is_measured(options.profile):
        if options.minibatch is None or options.gpu is not None:
            raise LgmError("layers measured on a device need --minibatch, and no --gpu")
        return load_measured(options.profile), options.minibatch
    if options.samples is None:
        raise LgmError("a trace needs --samples: how many the recorded iteration had")
    trace = codec.load_trace(options.profile)
    profile = profile_of(trace, options.samples, options.layers)
    if options.gpu is not None:
        there = profile_of(on_gpu(trace, GPUS[options.gpu], options.numbers or "fp32"), options.samples, options.layers)
        profile = replace(there, update=profile.update) if options.optimizer_on == "host" else there
    return profile, options.samples if options.minibatch is None else options.minibatch
